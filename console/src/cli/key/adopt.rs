//! `console key adopt`: gives the cluster key to nodes, with pairing codes typed by the operator or fetched over ssh.
use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, anyhow};
use clap::Args;
use common::fault::{Fault, FaultKind};
use protocol::{
    noise::{key::Key, pake::Code},
    pairing::Adopted,
};
use serde_json::{Value, json};
use tokio::{process::Command, time::timeout};

use crate::cli::{
    Failure, cluster, key,
    shared::{
        confirm::{Rehearsal, ask_line, has_person},
        interrupts::Interrupts,
        options::node,
        output,
        stderr::last_line,
    },
};
use crate::{
    client::clusters::Clusters,
    client::{adopt::adopt, host, with_port},
};

/// Time limit of one ssh command.
const SSH: Duration = Duration::from_secs(30);
/// The exit code of ssh itself, if it cannot connect or log in. Any other one is that of the command on the node.
const SSH_FAILED: i32 = 255;
/// Pairing codes that are asked for per node.
const TRIES: usize = 3;

/// Options of `console key adopt`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Adopt {
    /// The nodes as ADDRESS[:PORT]
    #[arg(id = "adopted", required = true, value_name = "NODE", value_parser = node)]
    nodes: Vec<String>,
    /// Pairing codes displayed by `sudo brambled pair`, one per node in the same order
    #[arg(long, value_name = "CODE,..", value_delimiter = ',', required_unless_present = "ssh",
        value_parser = <Code as std::str::FromStr>::from_str)]
    code: Vec<Code>,
    /// Fetch the codes with `ssh NODE sudo brambled pair --json`
    #[arg(long, conflicts_with = "code")]
    ssh: bool,
    #[command(flatten)]
    rehearsal: Rehearsal,
    #[arg(from_global)]
    pub(crate) json: bool,
}

/// The cluster secret of a key file.
///
/// # Errors
/// The file does not exist, cannot be read, or holds a restricted key.
pub(crate) fn secret(path: &Path) -> Result<[u8; 32], Failure> {
    match crate::cli::key::file::current(path) {
        Ok(Key::Secret(secret)) => Ok(secret),
        Ok(other) => Err(Failure::State {
            message: format!("{} holds a key of role {}, not the cluster secret", path.display(), other.name()),
            next: "run this on the machine that holds the cluster secret",
        }),
        Err(_) if !path.exists() => Err(Failure::State {
            message: format!("there is no key file {}", path.display()),
            next: "create the cluster key with console key new, or pass its file with --key FILE",
        }),
        Err(failure) => Err(failure),
    }
}

/// Adopts a node with its pairing code, or with the code that it displays over ssh.
///
/// # Errors
/// Those of [`adopt`] and of ssh.
pub(crate) async fn give(node: &str, code: Option<&Code>, secret: &[u8; 32]) -> Result<Adopted, Failure> {
    let code = match code {
        Some(code) => code.clone(),
        None => over_ssh(node).await?,
    };
    Ok(adopt(&with_port(node), &code, secret).await?)
}

/// Adopts a node with a code that the operator types, and asks again if the node does not display that code.
///
/// # Errors
/// There is no terminal to ask on, the operator entered nothing, or those of [`adopt`].
pub(crate) async fn give_asked(node: &str, secret: &[u8; 32]) -> Result<Adopted, Failure> {
    if !has_person() {
        return Err(Failure::Usage {
            message: format!("{node} has no key, and there is no terminal to ask for its pairing code"),
            next: "pass the code that `sudo brambled pair` displays there with --code, or --ssh",
        });
    }
    let question = format!("Pairing code of {node} (displayed there by: sudo brambled pair): ");
    let mut last = Failure::Declined;
    for _ in 0..TRIES {
        let typed = ask_line(&question).await?;
        if typed.is_empty() {
            return Err(Failure::Declined);
        }
        let code: Code = match typed.parse() {
            Ok(code) => code,
            Err(reason) => {
                output::note(&reason);
                continue;
            }
        };
        match give(node, Some(&code), secret).await {
            Ok(adopted) => return Ok(adopted),
            Err(Failure::Fault(fault)) if matches!(fault.kind, FaultKind::CodeWrong { .. } | FaultKind::NotPairing) => {
                output::note(&output::clean(&fault.to_string()));
                last = fault.into();
            }
            Err(failure) => return Err(failure),
        }
    }
    Err(last)
}

/// Adopts each node independently. Fails with the first failure.
pub(super) async fn run(options: Adopt, path: PathBuf, kept: Option<String>) -> Result<u8, Failure> {
    let secret = secret(&path)?;
    if !options.ssh && options.code.len() != options.nodes.len() {
        return Err(Failure::Usage {
            message: format!("{} pairing codes for {} nodes", options.code.len(), options.nodes.len()),
            next: "pass one --code per node, in the same order, or --ssh",
        });
    }
    let plan = json!({"nodes": options.nodes, "cluster": kept});
    if !options.rehearsal.is_real(&format!("give the cluster key to {}", options.nodes.join(", ")), &plan, options.json)
    {
        return Ok(0);
    }
    let mut interrupts = Interrupts::listen()?;
    let mut adopted = Vec::new();
    let result = interrupts.end(all(&options, &secret, &mut adopted)).await;
    // Without --cluster, the nodes are added to the default saved cluster, if it uses this key file.
    let kept = kept.or_else(|| default_cluster_with(&path));
    cluster::follow(kept.as_deref(), &adopted, &[]);
    result
}

/// The default saved cluster, if it uses this key file.
fn default_cluster_with(path: &Path) -> Option<String> {
    let known = Clusters::read(&cluster::path().ok()?).ok()?;
    let (name, kept) = known.default_cluster()?;
    let own = kept.key.clone().or_else(|| key::default_path().ok())?;
    (own == path).then(|| name.to_owned())
}

async fn all(options: &Adopt, secret: &[u8; 32], done: &mut Vec<String>) -> Result<u8, Failure> {
    let (mut results, mut first) = (Vec::new(), None);
    for (index, node) in options.nodes.iter().enumerate() {
        match give(node, options.code.get(index), secret).await {
            Ok(adopted) => {
                done.push(node.clone());
                results.push(json!({"node": adopted.node, "address": node, "fingerprint": adopted.fingerprint}));
                if !options.json {
                    let (name, fingerprint) = (output::clean(&adopted.node), output::clean(&adopted.fingerprint));
                    output::line(&format!("{name} ({node}) has key {fingerprint}"));
                }
            }
            Err(failure) => {
                let mut object = failure.json();
                object["address"] = json!(node);
                results.push(object);
                if options.nodes.len() > 1 {
                    output::note(&format!("{node}: {}", output::clean(&failure.to_string())));
                }
                first.get_or_insert(failure);
            }
        }
    }
    match first {
        None if options.json => output::line(&json!({"nodes": results}).to_string()),
        None => {}
        Some(failure) if options.nodes.len() == 1 => return Err(failure),
        Some(failure) => {
            if options.json {
                output::line(&json!({"nodes": results}).to_string());
            }
            return Ok(failure.code());
        }
    }
    Ok(0)
}

/// Fetches a pairing code from a node over ssh.
async fn over_ssh(node: &str) -> Result<Code, Failure> {
    let host = host(node);
    let mut command = Command::new("ssh");
    command.args(["-o", "ConnectTimeout=10", "--", host, "sudo", "brambled", "pair", "--json"]);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let ended = timeout(SSH, command.output()).await.map_err(|_| ssh_failure(node, None, "ssh timed out"))?;
    let ended = ended.context("cannot run ssh")?;
    if !ended.status.success() {
        return Err(ssh_failure(node, ended.status.code(), &String::from_utf8_lossy(&ended.stderr)));
    }
    let object: Value = serde_json::from_slice(&ended.stdout)
        .with_context(|| format!("{host}: sudo brambled pair --json did not print a JSON object"))?;
    let code = object["code"].as_str().and_then(|code| code.parse().ok());
    code.ok_or_else(|| Failure::Other(anyhow!("{host}: sudo brambled pair --json printed no valid pairing code")))
}

/// The failure of [`over_ssh`], from the exit code of ssh (`None`: it was ended) and its standard error.
fn ssh_failure(node: &str, code: Option<i32>, said: &str) -> Failure {
    let (host, reason) = (host(node), last_line(said));
    match code {
        None | Some(SSH_FAILED) => {
            let kind = FaultKind::Unreachable { address: format!("{host} (ssh)"), reason: reason.to_owned() };
            let next =
                format!("check that `ssh {host}` logs in, or run sudo brambled pair on the node and pass --code");
            Failure::Advised { fault: Box::new(Fault::new(node, kind)), next }
        }
        // The node has a key.
        Some(_) if said.contains("already belongs to") => Fault::new(node, FaultKind::Claimed).into(),
        Some(_) => Failure::State {
            message: format!("{host}: sudo brambled pair failed over ssh: {reason}"),
            next: "run sudo brambled pair on the node and pass --code, or allow sudo without a password there",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssh_receives_host_without_port() {
        for (node, expected) in
            [("pi1", "pi1"), ("pi1:9999", "pi1"), ("[fe80::1]:9999", "fe80::1"), ("fe80::1", "fe80::1")]
        {
            assert_eq!(host(node), expected);
        }
    }

    #[test]
    fn only_the_exit_code_of_ssh_itself_means_unreachable() {
        let of = |code, said: &str| {
            let failure = ssh_failure("pi1:9999", code, said);
            let error = failure.json()["error"].take();
            (failure.code(), error["code"].clone(), format!("{} {}", error["message"], error["next"]))
        };
        let (code, kind, text) = of(Some(1), "banner\nsudo: a password is required\n\n");
        assert_eq!((code, kind), (8, json!("state")));
        assert!(text.contains("pi1: sudo brambled pair failed over ssh: sudo: a password is required"), "{text}");
        assert!(text.contains("pass --code, or allow sudo"), "{text}");
        let (code, kind, text) = of(Some(255), "Permission denied (publickey).");
        assert_eq!((code, kind), (3, json!("node_unreachable")));
        assert!(text.contains("pi1 (ssh): Permission denied") && text.contains("`ssh pi1` logs in"), "{text}");
        assert_eq!(of(None, "").1, "node_unreachable");
        let claimed = "brambled: pi1 already belongs to cluster 1a2b; to adopt it again, remove F and restart it";
        assert_eq!(of(Some(1), claimed).1, "claimed");
        assert_eq!(of(Some(255), claimed).1, "node_unreachable");
    }
}
