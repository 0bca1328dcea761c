//! Every key that a family reads, with every hostile value, and every tensor, missing or of another size: the model
//! loads and runs, or an error names the key or a tensor.
use std::{
    cell::RefCell,
    collections::{BTreeSet, HashSet},
    fs::File,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use gguf::{BlockFormat, GgufError, GgufFile};
use harness::{
    families::shapes,
    family_model::FamilyModel,
    gguf_writer::{GgufWriter, Value},
    ranks::{Run, run},
};
use models::{KeySource, Keys, ModelSpec, families};

/// Far more than any of these small files takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// As what a key is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Text,
    Unsigned,
    Float,
    Flag,
    List,
}

/// Keys, each with a type as which it is read.
type KeySet = BTreeSet<(String, Kind)>;

/// A file that notes which keys are read.
struct Recorder<'a> {
    file: &'a GgufFile,
    keys: &'a RefCell<KeySet>,
}

impl Recorder<'_> {
    fn note(&self, key: &str, kind: Kind) -> &GgufFile {
        self.keys.borrow_mut().insert((key.to_owned(), kind));
        self.file
    }
}

impl KeySource for Recorder<'_> {
    fn text(&self, key: &str) -> Result<Option<String>, GgufError> {
        KeySource::text(self.note(key, Kind::Text), key)
    }

    fn unsigned(&self, key: &str) -> Result<Option<u64>, GgufError> {
        KeySource::unsigned(self.note(key, Kind::Unsigned), key)
    }

    fn float(&self, key: &str) -> Result<Option<f64>, GgufError> {
        KeySource::float(self.note(key, Kind::Float), key)
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, GgufError> {
        KeySource::flag(self.note(key, Kind::Flag), key)
    }

    fn flags(&self, key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        KeySource::flags(self.note(key, Kind::List), key)
    }

    fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, GgufError> {
        KeySource::integers(self.note(key, Kind::List), key)
    }

    fn rows(&self, tensor: &str) -> Option<usize> {
        KeySource::rows(self.file, tensor)
    }
}

/// Values at the limits and beyond them, and some of every other type.
fn hostile_values(kind: Kind) -> Vec<Value> {
    let list = |value: Value, count| Value::Array(value.type_number(), vec![value; count]);
    let mut values = match kind {
        Kind::Text => {
            let texts = ["none", "linear", "yarn", "longrope", "other", "\u{1b}[2J", &"x".repeat(10_000)];
            texts.map(|text| Value::Text(text.into())).to_vec()
        }
        Kind::Unsigned => {
            let limits = [1 << 10, 1 << 17, 1 << 20, 1 << 22, 1 << 24].map(|limit: u32| [limit, limit + 1]);
            let small = [0, 1, 2, 3, 5, 8, 16, 31, 33, u32::MAX];
            small.into_iter().chain(limits.into_iter().flatten()).map(Value::U32).collect()
        }
        Kind::Float => {
            let floats = [0.0, -0.0, -1.0, 1e-45, f32::MIN_POSITIVE, 0.5, 1.0, 1e30, f32::MAX, f32::INFINITY];
            let doubles = [f64::MAX, f64::NEG_INFINITY, 5e-324].map(Value::F64);
            floats.map(Value::F32).into_iter().chain(doubles).collect()
        }
        Kind::Flag => vec![Value::Flag(false)],
        Kind::List => {
            let elements =
                [Value::I32(-1), Value::I32(i32::MAX), Value::U32(1), Value::U64(u64::MAX), Value::Flag(false)];
            let lists = [1, 3, 4, 5, 1000].map(|count| elements.clone().map(|element| list(element, count)));
            lists.into_iter().flatten().collect()
        }
    };
    values.extend([
        Value::I32(-1),
        Value::I64(i64::MIN),
        Value::U64(u64::MAX),
        Value::F32(f32::NAN),
        Value::Flag(true),
    ]);
    values.extend([Value::Text(vec![]), Value::Text(vec![0xff]), Value::Array(4, vec![])]);
    values.extend([list(Value::U32(u32::MAX), 3), list(Value::F32(f32::NAN), 1000), list(Value::Text(vec![0xff]), 2)]);
    values
}

/// Lists for the layers in which one differs from the others in a key of the file.
fn uneven_values(file: &GgufFile, key: &str, layers: usize) -> Vec<Value> {
    let own = match (file.metadata().unsigned(key), file.metadata().integers(key)) {
        (Ok(Some(number)), _) => vec![number as i64; layers],
        (_, Ok(Some(list))) if list.len() == layers => list,
        _ => return Vec::new(),
    };
    let last = own[layers - 1];
    let others = [0, 1, last / 2, last * 2].into_iter().filter(|other| *other != last);
    let lists = others.flat_map(|other| [0, layers - 1].map(|layer| (layer, other)));
    lists
        .map(|(layer, other)| {
            let mut list = own.clone();
            list[layer] = other;
            Value::Array(Value::U32(0).type_number(), list.iter().map(|number| Value::U32(*number as u32)).collect())
        })
        .collect()
}

/// Number of blocks that predict further tokens.
const PREDICTORS: &str = "nextn_predict_layers";

/// A file that was read.
struct Found {
    spec: ModelSpec,
    file: GgufFile,
    /// Whether it has a predictor.
    predicts: bool,
}

/// Writes a file with a hole in place of the weights, and reads it, with its predictor if it should have one.
fn read(writer: &GgufWriter, path: &Path, keys: &RefCell<KeySet>, predicts: bool) -> Result<Found, GgufError> {
    let mut file = File::create(path).expect("the folder can be written");
    let length = writer.write_header(&mut file).expect("the disk takes the header");
    file.set_len(length).expect("holes take no space");
    let file = GgufFile::open(path)?;
    let architecture = file.metadata().text("general.architecture")?.and_then(families::named);
    if let Some(family) = architecture {
        let source = Recorder { file: &file, keys };
        // The outcome is that of the whole check below.
        drop((family.spec)(&Keys { source: &source, architecture: family.name }));
    }
    let spec = models::read(&file)?;
    let count = file.metadata().unsigned(&format!("{}.{PREDICTORS}", spec.architecture))?;
    let predicts = predicts && count.is_some_and(|count| count > 0);
    if predicts {
        models::read_predictor(&file, &spec)?;
    }
    Ok(Found { spec, file, predicts })
}

/// The models of a family in one shape, and what happened to them.
struct Subject<'a> {
    name: &'a str,
    path: &'a Path,
    /// Whether its file has a predictor.
    predicts: bool,
    /// Keys that the family reads, in any of the files so far.
    keys: RefCell<KeySet>,
    /// Specs that were run.
    seen: HashSet<String>,
    loaded: usize,
    refused: usize,
}

impl Subject<'_> {
    /// A key that the family reads and that is not done.
    fn next_key(&self, done: &KeySet) -> Option<(String, Kind)> {
        self.keys.borrow().difference(done).next().cloned()
    }

    /// Loads and runs, or refuses with an error that names `part`, another key or a tensor.
    fn check(&mut self, writer: &GgufWriter, part: &str, what: &str) -> bool {
        let begin = Instant::now();
        let found = catch_unwind(AssertUnwindSafe(|| read(writer, self.path, &self.keys, self.predicts)));
        let found = found.unwrap_or_else(|_| panic!("{}: {part} {what} makes the reader panic", self.name));
        let is_loaded = match found {
            Ok(Found { spec, file, predicts }) => {
                assert!(spec.is_sound(), "{}: {part} {what} is accepted, but not sound", self.name);
                if self.seen.insert(format!("{spec:?}")) {
                    let file = Arc::new(file);
                    let ran = catch_unwind(|| run(&file, &[3, 4], &Run { predicts, ..Run::exact(1) }));
                    assert!(ran.is_ok(), "{}: {part} {what} is accepted, but the model cannot run", self.name);
                }
                true
            }
            Err(error) => {
                let text = error.to_string();
                let keys = self.keys.borrow();
                let is_named = text.contains(part)
                    || text.contains(PREDICTORS)
                    || keys.iter().any(|(key, _)| text.contains(key.as_str()))
                    || [".weight", ".bias", ".scale"].iter().any(|suffix| text.contains(suffix));
                assert!(is_named, "{}: {part} {what}: the error names nothing: {text}", self.name);
                assert!(text.len() < 2000 && !text.contains('\u{1b}'), "{}: {part} {what}: {text:?}", self.name);
                false
            }
        };
        assert!(begin.elapsed() < PATIENCE, "{}: {part} {what} takes {:?}", self.name, begin.elapsed());
        self.loaded += usize::from(is_loaded);
        self.refused += usize::from(!is_loaded);
        is_loaded
    }
}

/// One shape of each model with a fresh subject: the awkward one, which has more keys, unless it is deep.
fn for_each_model(mut test: impl FnMut(&FamilyModel, &mut Subject<'_>)) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.gguf");
    let (mut loaded, mut refused) = (0, 0);
    let shapes = shapes();
    let shapes = shapes.chunks(2).map(|two| two.iter().rfind(|(_, model)| model.block_count() <= 8));
    for (name, model) in shapes.map(|shape| shape.expect("ordinary shapes are shallow")) {
        let keys = RefCell::new(BTreeSet::new());
        let file = GgufFile::from_bytes(vec![model.bytes()]).expect("a whole model");
        let predicts = models::read(&file).is_ok_and(|spec| models::read_predictor(&file, &spec).is_ok());
        let mut subject = Subject { name, path: &path, predicts, keys, seen: HashSet::new(), loaded: 0, refused: 0 };
        test(model, &mut subject);
        loaded += subject.loaded;
        refused += subject.refused;
    }
    println!("{loaded} files were loaded, {refused} were refused");
    assert!(refused > 1000, "{refused}");
}

#[test]
fn every_key_of_every_family_may_have_any_value() {
    for_each_model(|model, subject| {
        let writer = model.writer();
        assert!(subject.check(&writer, "nothing", "changed"), "{}", subject.name);
        let file = GgufFile::from_bytes(vec![writer.finish()]).expect("a whole model");
        let mut done = BTreeSet::new();
        // Some values make the family read further keys.
        while let Some((key, kind)) = subject.next_key(&done) {
            subject.check(&writer.clone().without(&key), &key, "absent");
            for value in hostile_values(kind).into_iter().chain(uneven_values(&file, &key, model.block_count())) {
                let changed = writer.clone().without(&key).value(&key, value.clone());
                let shown: String = format!("= {value:?}").chars().take(80).collect();
                subject.check(&changed, &key, &shown);
            }
            done.insert((key, kind));
        }
        assert!(done.len() >= 15, "{}: {} keys", subject.name, done.len());
    });
}

#[test]
fn every_tensor_of_every_family_may_be_absent_or_of_another_size() {
    for_each_model(|model, subject| {
        let writer = model.writer();
        let file = GgufFile::from_bytes(vec![writer.finish()]).expect("a whole model");
        let last = format!("blk.{}.", model.block_count() - 1);
        for tensor in file.tensors() {
            let is_of_layer = tensor.name.starts_with("blk.");
            if is_of_layer && !tensor.name.starts_with("blk.0.") && !tensor.name.starts_with(&last) {
                continue;
            }
            let name = tensor.name;
            let without = writer.clone().without_tensor(name);
            subject.check(&without, name, "absent");
            let [a, b, c, d] = tensor.dimensions;
            let others =
                [[a + 32, b, c, d], [a, b + 1, c, d], [a, b, c + 1, d], [a, b, c, 2], [1, 1, 1, 1], [b, a, c, d]];
            for dimensions in others.into_iter().filter(|dimensions| *dimensions != tensor.dimensions) {
                let changed = without.clone().made_tensor(name, &dimensions, BlockFormat::F32, |_| Ok(()));
                let is_loaded = subject.check(&changed, name, &format!("{dimensions:?}"));
                // The embedding may have more rows than there are tokens.
                assert!(!is_loaded || name == "token_embd.weight", "{}: {name} {dimensions:?}", subject.name);
            }
            let half = without.made_tensor(name, &[a, b, c, d], BlockFormat::F16, |_| Ok(()));
            subject.check(&half, name, "F16");
        }
    });
}
