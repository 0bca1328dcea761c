//! Reads the spec of a file, and compares the file's tensors with the table that follows from it.
use gguf::{BlockFormat, GgufError, GgufFile, error::shown};

use crate::{
    families,
    keys::Keys,
    limits::{BLOCK_COUNT_MAX, VOCABULARY_LENGTH_MAX},
    spec::{ModelSpec, Predictor},
    tensors::{
        DOWN_EXPERTS, TensorSpec,
        predictor::{JOINED, OWN_NORM, OWN_TABLES},
    },
};

/// Reads and checks the hyper-parameters, and checks that the tensors exist with their dimensions and that the file has
/// no others but those that [`unused`] lists.
///
/// # Errors
/// The file has no language model, or one that Bramble cannot run; the message names the key or the tensor.
pub fn read(file: &GgufFile) -> Result<ModelSpec, GgufError> {
    const KIND: &str = "general.type";
    const ARCHITECTURE: &str = "general.architecture";
    let metadata = file.metadata();
    let name = metadata.text(ARCHITECTURE)?.ok_or(GgufError::MissingKey { key: ARCHITECTURE.into() })?;
    let family = families::named(name)
        .ok_or_else(|| GgufError::Architecture { name: shown(name.as_bytes()), supported: families::names() })?;
    if let Some(kind) = metadata.text(KIND)?.filter(|kind| *kind != "model") {
        let (key, value) = (KIND.into(), shown(kind.as_bytes()));
        return Err(GgufError::Unsupported { key, value, feature: "a file without a language model" });
    }
    let spec = (family.spec)(&Keys { source: file, architecture: family.name })?;
    let spec = spec.with_expert_blocks(|layer| {
        file.tensor(&format!("blk.{layer}.{DOWN_EXPERTS}")).map_or(0, |tensor| tensor.format.block_length())
    });
    check_vocabulary(file, spec.vocabulary_length)?;
    TensorCheck { file, architecture: family.name, found: Vec::new() }.all(&spec)?;
    if !spec.is_sound() {
        let (key, value) = (ARCHITECTURE.into(), shown(name.as_bytes()));
        return Err(GgufError::Parameter {
            key,
            value,
            reason: "the numbers of its layers contradict each other".into(),
        });
    }
    Ok(spec)
}

/// Reads the predictor of a file whose model is `spec`, and checks its tensors.
///
/// # Errors
/// The file has none, or one that Bramble cannot run.
pub fn read_predictor(file: &GgufFile, spec: &ModelSpec) -> Result<ModelSpec, GgufError> {
    let architecture = families::named(&spec.architecture).map_or("", |family| family.name);
    let block = spec.block_count();
    let named = |name: &str| format!("blk.{block}.{name}");
    let has = |name: &str| file.tensor(&named(name)).is_some();
    if !has(JOINED) {
        return Err(GgufError::MissingTensor { tensor: named(JOINED), architecture });
    }
    let refuse = |reason: &str| GgufError::Parameter {
        key: format!("{}.nextn_predict_layers", spec.architecture),
        value: behind(file, spec).to_string(),
        reason: reason.into(),
    };
    if behind(file, spec) != 1 {
        return Err(refuse("only one block that predicts a further token is supported"));
    }
    if OWN_TABLES.iter().any(|name| has(name)) {
        return Err(refuse("a block with an embedding or an output matrix of its own is not supported"));
    }
    let predictor = Predictor { block, has_output_norm: has(OWN_NORM) };
    let own = spec.with_predictor(predictor).ok_or_else(|| refuse("the model has no layer of attention"))?;
    let own =
        own.with_expert_blocks(|_| file.tensor(&named(DOWN_EXPERTS)).map_or(0, |down| down.format.block_length()));
    TensorCheck { file, architecture, found: Vec::new() }.those_of(&own)?;
    Ok(own)
}

/// The tensors of a file that its model does not use, although they belong to its family.
pub fn unused(file: &GgufFile, spec: &ModelSpec) -> Vec<String> {
    let behind = behind(file, spec);
    file.tensors().map(|tensor| tensor.name).filter(|name| is_unused(name, spec, behind)).map(str::to_owned).collect()
}

/// Number of blocks behind the layers, which predict further tokens.
fn behind(file: &GgufFile, spec: &ModelSpec) -> usize {
    let count = file.metadata().unsigned(&format!("{}.nextn_predict_layers", spec.architecture));
    count.ok().flatten().map_or(0, |count| count.min(BLOCK_COUNT_MAX) as usize)
}

/// Blocks that predict further tokens, behind the layers of the model, and factors for quantising activations, which
/// kernels scale by themselves.
fn is_unused(name: &str, spec: &ModelSpec, behind: usize) -> bool {
    if name.ends_with(".input_scale") {
        return true;
    }
    let Some((block, part)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else { return false };
    let Some(after) = block.parse::<usize>().ok().and_then(|number| number.checked_sub(spec.block_count())) else {
        return false;
    };
    after < behind || part.starts_with("nextn.")
}

fn check_vocabulary(file: &GgufFile, rows: usize) -> Result<(), GgufError> {
    const KEY: &str = "tokenizer.ggml.tokens";
    let tokens = file.metadata().texts(KEY)?.map_or(0, |tokens| tokens.len());
    if tokens <= rows && rows <= VOCABULARY_LENGTH_MAX {
        return Ok(());
    }
    Err(GgufError::Parameter {
        key: KEY.into(),
        value: format!("a list of {tokens} tokens"),
        reason: format!("token_embd.weight has {rows} rows (at most {VOCABULARY_LENGTH_MAX} are supported)"),
    })
}

/// Compares the tensors of a file with the table.
struct TensorCheck<'a> {
    file: &'a GgufFile,
    architecture: &'static str,
    /// The names that the table has.
    found: Vec<String>,
}

impl TensorCheck<'_> {
    /// The tensors of the table exist with their dimensions.
    fn those_of(&mut self, spec: &ModelSpec) -> Result<(), GgufError> {
        for tensor in spec.tensors() {
            self.check(tensor.name.into(), &tensor)?;
            self.check_scale("", &tensor)?;
        }
        for layer in 0..spec.block_count() {
            for tensor in spec.layer_tensors(layer) {
                self.check(spec.layer_tensor(layer, tensor.name), &tensor)?;
                self.check_scale(&spec.layer_tensor(layer, ""), &tensor)?;
            }
        }
        Ok(())
    }

    /// There are no others, either.
    fn all(mut self, spec: &ModelSpec) -> Result<(), GgufError> {
        self.those_of(spec)?;
        self.found.sort_unstable();
        let behind = behind(self.file, spec);
        for tensor in self.file.tensors() {
            let is_known = self.found.binary_search_by(|found| found.as_str().cmp(tensor.name)).is_ok();
            if !is_known && !is_unused(tensor.name, spec, behind) {
                let tensor = shown(tensor.name.as_bytes());
                return Err(GgufError::UnexpectedTensor { tensor, architecture: self.architecture });
            }
        }
        Ok(())
    }

    /// Checks the factor of a matrix's products, if the file has one.
    fn check_scale(&mut self, prefix: &str, of: &TensorSpec) -> Result<(), GgufError> {
        let Some(name) = of.scale_name().map(|name| format!("{prefix}{name}")) else { return Ok(()) };
        let Some(tensor) = self.file.tensor(&name) else { return Ok(()) };
        let count = of.dimensions[2] as u64;
        if tensor.dimensions != [count, 1, 1, 1] {
            let (found, expected) = (shown_dimensions(&tensor.dimensions), shown_dimensions(&[count, 1]));
            return Err(GgufError::TensorShape { tensor: name, found, expected });
        }
        if tensor.format != BlockFormat::F32 {
            return Err(GgufError::TensorFormat { tensor: name, found: tensor.format.name() });
        }
        self.found.push(name);
        Ok(())
    }

    fn check(&mut self, name: String, wanted: &TensorSpec) -> Result<(), GgufError> {
        let Some(tensor) = self.file.tensor(&name) else {
            if wanted.is_optional {
                return Ok(());
            }
            return Err(GgufError::MissingTensor { tensor: name, architecture: self.architecture });
        };
        let [columns, rows, count] = wanted.file_dimensions().map(|length| length as u64);
        if tensor.dimensions != [columns, rows, count, 1] {
            let (found, expected) = (shown_dimensions(&tensor.dimensions), shown_dimensions(&[columns, rows, count]));
            return Err(GgufError::TensorShape { tensor: name, found, expected });
        }
        if wanted.is_float && tensor.format != BlockFormat::F32 {
            return Err(GgufError::TensorFormat { tensor: name, found: tensor.format.name() });
        }
        self.found.push(name);
        Ok(())
    }
}

/// Dimensions for messages: the first two, and later ones that are not 1.
fn shown_dimensions(dimensions: &[u64]) -> Vec<u64> {
    let count = dimensions.iter().rposition(|length| *length != 1).map_or(0, |last| last + 1);
    dimensions[..count.max(2)].to_vec()
}
