//! Complete, partial, wrong and missing files; downloads over http from a server with typical faults.
use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

use sha2::Digest;
use tempfile::TempDir;

use super::*;

const NAME: &str = "bard.gguf";

fn model() -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/demo/bard-q8_0.gguf"))
        .expect("the demo model is there")
}

fn hash_of(bytes: &[u8]) -> Sha256 {
    Sha256(sha2::Sha256::digest(bytes).into())
}

fn store() -> (Store, TempDir) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    (Store::new(&[folder.path().join("models")], folder.path()), folder)
}

/// The server's reaction to the n-th request: (method and path, range) -> bytes to write before it closes.
type Script = dyn Fn(usize, &str, Option<u64>) -> Vec<u8> + Send + Sync;

/// A server whose connections serve one request each. Ends with the test process.
fn server(script: Arc<Script>) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback can be bound");
    let address = listener.local_addr().expect("it is bound");
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let seen = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (range, line) = head(&stream);
            let count = {
                let mut asked = seen.lock().expect("no thread panicked with it");
                asked.push(format!("{line} {range:?}"));
                asked.len() - 1
            };
            let mut stream = stream;
            // The client closes when it has read enough.
            let _ = stream.write_all(&script(count, &line, range));
        }
    });
    (format!("http://{address}"), asked)
}

fn head(stream: &TcpStream) -> (Option<u64>, String) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let range = lines.filter_map(|line| line.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned)).last();
    let start = range.and_then(|range| range.split('-').next()?.parse().ok());
    (start, first.split(' ').nth(1).unwrap_or_default().to_owned())
}

/// A response with the bytes from `start`, truncated after `count`.
fn part(bytes: &[u8], start: u64, count: usize, more: &str) -> Vec<u8> {
    let rest = &bytes[start as usize..];
    let (size, end) = (bytes.len(), bytes.len() - 1);
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {start}-{end}/{size}\r\n{more}Connection: close\r\n\r\n",
        rest.len()
    );
    [head.as_bytes(), &rest[..count.min(rest.len())]].concat()
}

fn whole(bytes: &[u8], length: usize) -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n").as_bytes(), bytes].concat()
}

fn go_on(_: Step, _: u64, _: Option<u64>) -> bool {
    true
}

#[track_caller]
fn nothing_is_listed(store: &Store) {
    let complete: Vec<ModelFile> = store.list().into_iter().filter(|file| file.state != FileState::Partial).collect();
    assert_eq!(complete, []);
    assert!(store.find(NAME).is_err());
}

#[test]
fn download_with_broken_connections_completes() {
    let bytes = Arc::new(model());
    let (url, asked) = server({
        let bytes = Arc::clone(&bytes);
        Arc::new(move |_, _, range| {
            // One megabyte, then the connection ends.
            part(&bytes, range.unwrap_or(0), 1_000_000, "ETag: \"v1\"\r\n")
        })
    });
    let (store, _folder) = store();
    let file = pull(&store, &format!("{url}/{NAME}"), NAME, Some(hash_of(&bytes)), &mut go_on).expect("it comes");
    assert_eq!(
        (file.size, file.sha256, &file.state),
        (Bytes(bytes.len() as u64), Some(hash_of(&bytes)), &FileState::Complete)
    );
    assert!(file.identity.is_some());
    assert_eq!(store.list(), [file]);
    let asked = asked.lock().expect("no thread panicked with it");
    assert!(asked.len() > 5 && asked.iter().any(|line| line.contains("Some(1000000)")), "{asked:?}");
    // A second download of the same name is refused before anything is loaded.
    let again = store.begin(NAME, Origin::default()).expect_err("it is there");
    assert!(matches!(again, FaultKind::ModelExists { .. }));
}

#[test]
fn download_resumes_where_an_earlier_one_ended() {
    let bytes = Arc::new(model());
    let (url, asked) = server({
        let bytes = Arc::clone(&bytes);
        Arc::new(move |count, _, range| {
            let most = if count < 2 { 1_000_000 } else { usize::MAX };
            part(&bytes, range.unwrap_or(0), most, "ETag: \"v1\"\r\n")
        })
    });
    let (store, folder) = store();
    let ended = pull(&store, &format!("{url}/{NAME}"), NAME, None, &mut |_, done, _| done == 0);
    assert!(matches!(ended, Err(FaultKind::StoreCancelled)), "{ended:?}");
    let length = fs::metadata(folder.path().join("models").join(format!("{NAME}{PART}"))).expect("it was stored").len();
    assert!(length > 0 && length < bytes.len() as u64, "{length}");
    nothing_is_listed(&store);
    pull(&store, &format!("{url}/{NAME}"), NAME, None, &mut go_on).expect("it resumes");
    assert!(
        asked.lock().expect("no thread panicked with it").iter().any(|line| line.ends_with(&format!("Some({length})")))
    );
    assert_eq!(fs::read(store.find(NAME).expect("it is there")).expect("it can be read"), *bytes);
}

#[test]
fn new_version_on_the_server_restarts_the_download() {
    let bytes = Arc::new(model());
    let (store, folder) = store();
    for version in ["a", "b"] {
        let (bytes, tag) = (Arc::clone(&bytes), format!("ETag: \"{version}\"\r\n"));
        let (url, asked) = server(Arc::new(move |_, _, range| part(&bytes, range.unwrap_or(0), 1_000_000, &tag)));
        let ended = pull(&store, &format!("{url}/{NAME}"), NAME, None, &mut |_, done, _| done == 0);
        assert!(matches!(ended, Err(FaultKind::StoreCancelled)), "{ended:?}");
        assert!(
            asked
                .lock()
                .expect("no thread panicked with it")
                .iter()
                .all(|line| line.ends_with("Some(0)") || line.ends_with("None"))
        );
    }
    assert!(folder.path().join("models").join(format!("{NAME}{PART}")).is_file());
}

#[test]
fn server_with_wrong_lengths_gives_no_file() {
    let bytes = Arc::new(model());
    let lies: [(&str, Arc<Script>); 4] = [
        ("received", {
            // It announces more than it has.
            let bytes = Arc::clone(&bytes);
            Arc::new(move |_, _, _| whole(&bytes, bytes.len() + 100))
        }),
        ("more than the announced", {
            // It announces one byte less in its first response than in its second.
            let bytes = Arc::clone(&bytes);
            Arc::new(
                move |count, _, _| if count == 0 { whole(&bytes, bytes.len() - 1) } else { whole(&bytes, bytes.len()) },
            )
        }),
        ("different part", {
            let bytes = Arc::clone(&bytes);
            Arc::new(
                move |count, _, range| {
                    if count == 0 { part(&bytes, 0, 1, "") } else { part(&bytes, range.unwrap_or(0) + 5, 9, "") }
                },
            )
        }),
        ("without a valid", Arc::new(|_, _, _| b"HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\n\r\nx".to_vec())),
    ];
    for (part, script) in lies {
        let (url, _) = server(script);
        let (store, _folder) = store();
        let error = pull(&store, &format!("{url}/{NAME}"), NAME, None, &mut go_on).expect_err(part);
        assert!(
            matches!(error, FaultKind::DownloadFailed { .. }) && error.to_string().contains(part),
            "{part}: {error}"
        );
        nothing_is_listed(&store);
    }
}

#[test]
fn file_too_large_for_the_disk_is_refused_before_loading() {
    let (url, asked) = server(Arc::new(|_, _, _| {
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\nContent-Range: bytes 0-0/4000000000000\r\n\r\nx".to_vec()
    }));
    let (store, _folder) = store();
    let error = pull(&store, &format!("{url}/{NAME}"), NAME, None, &mut go_on).expect_err("no disk is that large");
    assert!(matches!(error, FaultKind::DiskShort { .. }), "{error}");
    assert_eq!(asked.lock().expect("no thread panicked with it").len(), 1);
    let (url, _) = server(Arc::new(|_, _, _| {
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\nContent-Range: bytes 0-0/99999999999999999\r\n\r\nx"
            .to_vec()
    }));
    let error = pull(&store, &format!("{url}/{NAME}"), NAME, None, &mut go_on).expect_err("there is no such file");
    assert!(error.to_string().contains("a file of"), "{error}");
}

#[test]
fn redirects_are_followed_and_their_hash_is_checked() {
    let bytes = Arc::new(model());
    let with = |hash: String, size: usize| -> Arc<Script> {
        let bytes = Arc::clone(&bytes);
        Arc::new(move |_, path, range| {
            match path {
            "/o/r/resolve/main/bard.gguf" => format!(
                "HTTP/1.1 302 Found\r\nX-Linked-Etag: \"{hash}\"\r\nX-Linked-Size: {size}\r\nLocation: /there\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            .into_bytes(),
            _ => part(&bytes, range.unwrap_or(0), usize::MAX, ""),
        }
        })
    };
    let path = "o/r/resolve/main/bard.gguf";
    let (url, _) = server(with(hash_of(&bytes).to_string(), bytes.len()));
    let (good, _folder) = store();
    assert!(pull(&good, &format!("{url}/{path}"), NAME, None, &mut go_on).is_ok());
    let (url, _) = server(with("00".repeat(32), bytes.len()));
    let (bad, folder) = store();
    let error = pull(&bad, &format!("{url}/{path}"), NAME, None, &mut go_on).expect_err("the hash is another");
    assert!(matches!(error, FaultKind::HashDiffers { .. }), "{error}");
    nothing_is_listed(&bad);
    assert_eq!(
        fs::read_dir(folder.path().join("models")).expect("the folder is there").count(),
        0,
        "nothing of it is kept"
    );
    let (url, _) = server(with(hash_of(&bytes).to_string(), 5));
    let error = pull(&bad, &format!("{url}/{path}"), NAME, None, &mut go_on).expect_err("the size is another");
    assert!(error.to_string().contains("announced 5 bytes"), "{error}");
    let (url, asked) = server(Arc::new(|_, _, _| {
        b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec()
    }));
    let error = pull(&bad, &format!("{url}/{path}"), NAME, None, &mut go_on).expect_err("it leads nowhere");
    assert!(error.to_string().contains("redirects"), "{error}");
    assert_eq!(asked.lock().expect("no thread panicked with it").len(), 9);
}

#[test]
fn https_never_leads_to_http_and_other_schemes_are_refused() {
    assert!(check_scheme_of("https://a/x", "http://a/x").contains("from https to http"));
    assert!(check_scheme_of("file:///etc/passwd", "file:///etc/passwd").contains("must begin with"));
    assert!(check_scheme_of("http://a", "ftp://a").contains("must begin with"));
    let (store, _folder) = store();
    for url in ["file:///etc/passwd", "ftp://a/b", "", "http://"] {
        assert!(pull(&store, url, NAME, None, &mut go_on).is_err(), "{url:?}");
    }
    for status in [401, 404, 500] {
        let (url, _) = server(Arc::new(move |_, _, _| {
            format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").into_bytes()
        }));
        let error = pull(&store, &format!("{url}/{NAME}"), NAME, None, &mut go_on).expect_err("it says no");
        assert!(error.to_string().contains(&status.to_string()), "{error}");
    }
}

fn check_scheme_of(first: &str, url: &str) -> String {
    super::offer::check_scheme(first, url).expect_err("it is refused").to_string()
}

#[test]
fn invalid_files_are_deleted_and_incomplete_ones_not_found() {
    let (store, folder) = store();
    let text = b"this is no model".repeat(100);
    let origin =
        |bytes: &[u8]| Origin { size: Some(bytes.len() as u64), sha256: Some(hash_of(bytes).to_string()), etag: None };
    let mut part = store.begin(NAME, origin(&text)).expect("the folder can be made");
    part.append(&text).expect("it fits");
    let error = store.finish(part, &mut go_on).expect_err("it is no model");
    assert!(matches!(error, FaultKind::ModelInvalid { .. }), "{error}");
    let bytes = model();
    let mut part = store.begin(NAME, origin(&bytes)).expect("nothing is there");
    part.append(&bytes[..4_000_000]).expect("it fits");
    assert!(matches!(store.begin(NAME, origin(&bytes)), Err(FaultKind::StoreBusy { .. })), "one writer at a time");
    let error = store.finish(part, &mut go_on).expect_err("it is not whole");
    assert!(error.to_string().contains("4000000 of"), "{error}");
    nothing_is_listed(&store);
    let listed = store.list();
    assert_eq!((listed.len(), &listed[0].state, listed[0].size), (1, &FileState::Partial, Bytes(4_000_000)));
    // It resumes; more bytes than announced are refused.
    let mut part = store.begin(NAME, origin(&bytes)).expect("it resumes");
    assert_eq!(part.length(), 4_000_000);
    part.append(&bytes[4_000_000..]).expect("it fits");
    assert!(part.append(b"x").is_err());
    let file = store.finish(part, &mut go_on).expect("it is whole");
    assert_eq!(file.state, FileState::Complete);
    assert_eq!(
        store.remove("other.gguf"),
        Err(FaultKind::ModelMissing {
            model: "other.gguf".into(),
            folders: folder.path().join("models").display().to_string()
        })
    );
    for odd in ["../bard.gguf", "/etc/passwd", "bard.gguf.part"] {
        assert!(store.remove(odd).is_err() && store.find(odd).is_err() && store.read(odd, 0).is_err(), "{odd}");
    }
    store.remove(NAME).expect("it is there");
    assert_eq!(store.list(), []);
}

#[test]
fn hash_is_stored_until_the_file_changes() {
    let (store, folder) = store();
    let path = folder.path().join("models").join(NAME);
    fs::create_dir_all(folder.path().join("models")).expect("a folder can be made");
    let mut bytes = model();
    fs::write(&path, &bytes).expect("it can be written");
    assert_eq!(store.list()[0].sha256, None);
    let mut read = 0;
    assert_eq!(
        store
            .verify(NAME, true, &mut |step: Step, done: u64, _: Option<u64>| {
                assert_eq!(step, Step::Hashing);
                read = read.max(done);
                true
            })
            .map(|file| file.sha256),
        Ok(Some(hash_of(&bytes)))
    );
    assert!(read > 0);
    assert_eq!(
        store.verify(NAME, true, &mut |_: Step, _: u64, _: Option<u64>| panic!("it is known")).map(|file| file.sha256),
        Ok(Some(hash_of(&bytes)))
    );
    *bytes.last_mut().expect("it has bytes") ^= 1;
    fs::write(&path, &bytes).expect("it can be written");
    assert_eq!(store.verify(NAME, true, &mut go_on).map(|file| file.sha256), Ok(Some(hash_of(&bytes))));
    assert_eq!(
        store.read(NAME, bytes.len() as u64 - 3),
        Ok((Bytes(bytes.len() as u64), bytes[bytes.len() - 3..].to_vec()))
    );
    assert_eq!(store.read(NAME, u64::MAX), Ok((Bytes(bytes.len() as u64), Vec::new())));
}

#[test]
fn no_server_is_contacted_for_a_refused_name() {
    let (url, asked) = server(Arc::new(|_, _, _| Vec::new()));
    let (store, _folder) = store();
    for name in ["../x.gguf", "x.txt", ""] {
        let refused = pull(&store, &format!("{url}/{NAME}"), name, None, &mut go_on);
        assert!(matches!(refused, Err(FaultKind::ParameterInvalid { .. })), "{refused:?}");
    }
    assert_eq!(asked.lock().expect("no thread panicked with it").len(), 0);
}

#[test]
fn http_from_another_machine_needs_a_hash() {
    let (store, _folder) = store();
    let refused = pull(&store, "http://192.0.2.1/bard.gguf", NAME, None, &mut go_on).expect_err("it is http");
    assert!(refused.to_string().contains("--sha256"), "{refused}");
}

#[test]
fn public_server_reaches_no_local_listener() {
    let (url, asked) = server(Arc::new(|_, _, _| b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()));
    let agent = super::pull::agent(super::reach::Reach::of_public());
    let refused = super::pull::ask(&agent, &url, None).expect_err("it is loopback");
    assert!(refused.to_string().contains("this machine"), "{refused}");
    assert_eq!(asked.lock().expect("no thread panicked with it").len(), 0);
}

#[test]
fn server_that_sends_too_slowly_is_dropped() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback can be bound");
    let url = format!("http://{}/{NAME}", listener.local_addr().expect("it is bound"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let (range, _) = head(&stream);
                let start = range.unwrap_or(0);
                let answer = format!(
                    "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {start}-99999999/100000000\r\n\r\n",
                    100_000_000 - start
                );
                let _ = stream.write_all(answer.as_bytes());
                while stream.write_all(b"x").is_ok() {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
            });
        }
    });
    let (store, _folder) = store();
    let begun = std::time::Instant::now();
    let left = pull(&store, &url, NAME, None, &mut go_on).expect_err("it takes a month");
    assert!(left.to_string().contains("sent less than"), "{left}");
    assert!(begun.elapsed() < std::time::Duration::from_secs(60));
}

#[test]
fn links_in_the_model_folder_give_away_and_overwrite_nothing() {
    let (store, folder) = store();
    let (models, secret) = (folder.path().join("models"), folder.path().join("cluster.key"));
    fs::create_dir(&models).expect("the folder can be written");
    fs::write(&secret, "secret 0123").expect("the folder can be written");
    let link = |name: &str| std::os::unix::fs::symlink(&secret, models.join(name)).expect("the folder can be written");
    link("key.gguf");
    let refused = store.read("key.gguf", 0).expect_err("it is no model");
    assert!(matches!(refused, FaultKind::ModelInvalid { .. }), "{refused}");
    for name in [format!("{NAME}{PART}"), format!("{NAME}{PART}.from")] {
        link(&name);
        let refused = store.begin(NAME, Origin { size: Some(9), ..Origin::default() }).expect_err(&name);
        assert!(matches!(refused, FaultKind::StoreFailed { .. }), "{name}: {refused}");
        assert_eq!(fs::read_to_string(&secret).expect("it is there"), "secret 0123", "{name}");
        fs::remove_file(models.join(&name)).expect("it is ours");
    }
}

#[test]
fn file_that_a_request_writes_is_not_removed() {
    let (store, folder) = store();
    let (bytes, place) = (model(), folder.path().join("models"));
    let origin = Origin { size: Some(bytes.len() as u64), ..Origin::default() };
    let mut part = store.begin(NAME, origin).expect("the folder can be made");
    part.append(&bytes[..4_000_000]).expect("it fits");
    let busy = store.remove(NAME).expect_err("it is being written");
    assert!(matches!(busy, FaultKind::StoreBusy { .. }), "{busy}");
    part.append(&bytes[4_000_000..]).expect("it fits");
    store.finish(part, &mut go_on).expect("nothing of it was deleted");
    let other = store.begin("other.gguf", Origin::default()).expect("it is new");
    store.remove(NAME).expect("nothing writes it any more");
    drop(other);
    store.remove("other.gguf").expect("nothing writes it any more");
    assert_eq!(fs::read_dir(place).expect("it is there").count(), 0);
}

#[test]
fn only_the_file_that_was_written_gets_the_final_name() {
    let (store, folder) = store();
    let bytes = model();
    let path = folder.path().join("models").join(format!("{NAME}{PART}"));
    for (written, wrong) in [(&bytes[..], "good"), (&b"this is no model"[..], "wrong")] {
        let mut part = store.begin(NAME, Origin::default()).expect("the folder can be written");
        part.append(written).expect("it fits");
        // As by an operator, in place of a file that is still written.
        fs::remove_file(&path).expect("it is there");
        fs::write(&path, "of another request").expect("it can be written");
        let error = store.finish(part, &mut go_on).expect_err(wrong);
        assert!(matches!(&error, FaultKind::DownloadFailed { reason } if reason.contains("replaced")), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("it stays"), "of another request", "{wrong}");
        nothing_is_listed(&store);
    }
}
