//! The step that answers the prompts with llama.cpp: a running llama-server, one that is started for the test (here or on a
//! node, over ssh), or Python with llama_cpp.
mod python;
mod server;

use std::path::{Path, PathBuf};

use super::{
    Acceptance,
    answers::{Serving, assign},
    bed::TestBed,
};
use crate::{
    cli::Failure,
    http::{HttpError, Url},
    operator::acceptance::{
        AnswerFacts, LlamaFacts,
        ids::first_difference,
        llama::{LlamaAnswer, LlamaPrompt},
        prompts::PROMPTS,
    },
};

/// The program of llama.cpp.
const SERVER: &str = "llama-server";
/// Where the packages keep models.
const MODELS: &str = "/var/lib/bramble/models";

/// How llama.cpp is run.
enum Program {
    /// A server that runs already.
    Running(Url),
    /// llama-server.
    Server(PathBuf),
    /// Python with llama_cpp.
    Python(PathBuf),
}

/// Where llama.cpp runs, and with which file.
pub(super) struct LlamaPlace<'a> {
    /// The host for ssh; `None`: this machine.
    pub(super) host: Option<&'a str>,
    pub(super) model: PathBuf,
}

impl Program {
    /// The program of the options, else llama-server on PATH.
    fn of(options: &Acceptance) -> Result<Self, String> {
        let Some(path) = &options.llama_cpp else {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let found = std::env::split_paths(&path).map(|folder| folder.join(SERVER)).find(|path| path.is_file());
            return found.map(Self::Server).ok_or_else(|| format!("{SERVER} is not on PATH (see --llama-cpp)"));
        };
        let text = path.to_string_lossy();
        if text.starts_with("http") {
            // The report contains the reason, and no address.
            return text.parse().map(Self::Running).map_err(|error: HttpError| match error {
                HttpError::Url { reason, .. } => format!("--llama-cpp: {reason}"),
                other => other.to_string(),
            });
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(match name.as_str() {
            name if name.starts_with("python") => Self::Python(path.clone()),
            // The other programs of llama.cpp lie next to it.
            name if name.starts_with("llama-") => Self::Server(path.with_file_name(SERVER)),
            _ => Self::Server(path.join(SERVER)),
        })
    }
}

/// The model's file where llama.cpp runs.
fn file(options: &Acceptance, model: &str) -> PathBuf {
    options.llama_model.clone().unwrap_or_else(|| Path::new(MODELS).join(model))
}

/// Why llama.cpp cannot be run.
pub(super) fn obstacle(options: &Acceptance, model: &str) -> Option<String> {
    let program = match Program::of(options) {
        Ok(program) => program,
        Err(reason) => return Some(reason),
    };
    let file = file(options, model);
    let is_elsewhere = options.llama_on.is_some() || matches!(program, Program::Running(_));
    if is_elsewhere || file.is_file() {
        return None;
    }
    Some(format!("this machine has no file {} (see --llama-model and --llama-on)", file.display()))
}

/// Answers the prompts with llama.cpp, while the nodes are idle, and compares the tokens.
pub(super) async fn compare(bed: &mut TestBed, options: &Acceptance) -> Result<LlamaFacts, Failure> {
    let program =
        Program::of(options).map_err(|message| Failure::State { message, next: "see console acceptance --help" })?;
    let node = options.llama_on.as_deref().map(|who| bed.find(who)).transpose()?;
    let serving = serving(bed).await?;
    let mut prompts = Vec::with_capacity(PROMPTS.len());
    for prompt in &PROMPTS {
        prompts.push(LlamaPrompt { ids: serving.tokens(prompt).await?, answer: prompt.answer });
    }
    drop(serving);
    // llama.cpp needs the memory and the cores of its node.
    bed.clear().await?;
    let host = node.as_ref().map(|(_, host)| host.as_str());
    let place = LlamaPlace { host, model: file(options, &bed.report.model) };
    let answers = match &program {
        Program::Running(url) => server::ask(url, &prompts).await?,
        Program::Server(path) => server::start_and_ask(path, &place, &prompts).await?,
        Program::Python(path) => python::ask(path, &place, &prompts).await?,
    };
    let answers = compared(bed, &prompts, answers).await?;
    Ok(LlamaFacts { node: node.map(|(name, _)| name), answers })
}

/// The topology of all nodes.
async fn serving(bed: &mut TestBed) -> Result<Serving, Failure> {
    bed.clear_others().await?;
    let count = bed.nodes.len();
    Ok(assign(bed, count).await?.0)
}

/// The answers, compared with those of the fewest nodes.
async fn compared(
    bed: &mut TestBed,
    prompts: &[LlamaPrompt],
    answers: Vec<LlamaAnswer>,
) -> Result<Vec<AnswerFacts>, Failure> {
    let mut facts = Vec::with_capacity(answers.len());
    for ((fixed, prompt), answer) in PROMPTS.iter().zip(prompts).zip(answers) {
        let expected = bed.report.expected(fixed.name).map(<[u32]>::to_vec).unwrap_or_default();
        let mut ids = answer.ids;
        // A server may send more tokens than it was asked for.
        ids.truncate(prompt.answer as usize);
        let differs = match first_difference(&expected, &ids) {
            Some(_) => serving(bed).await?.differs(&prompt.ids, &expected, &ids).await?,
            None => None,
        };
        facts.push(AnswerFacts {
            prompt: fixed.name.to_owned(),
            prompt_tokens: prompt.ids.len() as u32,
            ttft_ms: 0.0,
            speeds: answer.speeds,
            ids,
            differs,
        });
    }
    Ok(facts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, target::parse};

    fn options(line: &str) -> Acceptance {
        let line = format!("console acceptance {line}");
        match parse(line.split_whitespace().map(Into::into)).expect("a line").command {
            Some(Command::Acceptance(options)) => options,
            other => panic!("another command: {other:?}"),
        }
    }

    #[test]
    fn program_is_recognised_by_its_name() {
        let of = |path: &str| match Program::of(&options(&format!("--llama-cpp {path}"))) {
            Ok(Program::Running(url)) => format!("running {}", url.authority),
            Ok(Program::Server(path)) => format!("server {}", path.display()),
            Ok(Program::Python(path)) => format!("python {}", path.display()),
            Err(reason) => reason,
        };
        assert_eq!(of("http://pi1:8080"), "running pi1:8080");
        assert_eq!(of("/opt/llama/llama-cli"), "server /opt/llama/llama-server");
        assert_eq!(of("/opt/llama"), "server /opt/llama/llama-server");
        assert_eq!(of("/venv/bin/python3.11"), "python /venv/bin/python3.11");
        assert!(of("https://pi1").contains("https is not supported"));
    }

    #[test]
    fn missing_file_is_an_obstacle_only_on_this_machine() {
        let of = |line: &str| obstacle(&options(line), "m.gguf");
        let local = of("--llama-cpp /opt/llama").expect("there is no file");
        assert!(local.contains("/var/lib/bramble/models/m.gguf"), "{local}");
        assert_eq!(of("--llama-cpp /opt/llama --llama-on pi1"), None);
        assert_eq!(of("--llama-cpp http://pi1:8080"), None);
    }
}
