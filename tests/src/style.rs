//! The rules of style that a parser can check: type names, parameters, closures and the homes of modules. Each rule
//! returns its violations as lines with file and line.
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Block, Expr, FieldValue, File, FnArg, Ident, Item, ItemMod, Macro, Pat, Signature, Stmt,
    visit::{self, Visit},
};

/// A Rust file of the repository, parsed.
pub struct Source {
    /// Its path relative to the repository's root.
    pub path: String,
    file: File,
}

impl Source {
    /// Parses every Rust file below a folder of the repository.
    ///
    /// # Panics
    /// A file cannot be read or parsed.
    pub fn all(root: &Path, folder: &str) -> Vec<Self> {
        let mut paths = Vec::new();
        files(&root.join(folder), &mut paths);
        paths.sort();
        paths
            .iter()
            .map(|path| {
                let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                let below = path.strip_prefix(root).expect("a file of the repository");
                Self { path: below.to_string_lossy().into_owned(), file }
            })
            .collect()
    }

    /// The compiled crate that the file belongs to: a package's library, one of its programs, or one of its tests.
    fn unit(&self) -> String {
        let (package, inside) = match self.path.split_once("/src/") {
            Some(parts) => parts,
            None => return Path::new(&self.path).parent().unwrap_or(Path::new("")).display().to_string(),
        };
        match inside.split_once('/') {
            Some(("bin", _)) => self.path.clone(),
            _ => package.to_owned(),
        }
    }
}

/// All Rust files below a folder.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            found.push(path);
        }
    }
}

/// Types of the same name within one crate, private types and those of tests included. A line for every definition.
pub fn repeated_types(sources: &[Source]) -> Vec<String> {
    let mut places: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for source in sources {
        let mut types = Types(Vec::new());
        types.visit_file(&source.file);
        for name in types.0 {
            let place = place(source, &name);
            places.entry((source.unit(), name.to_string())).or_default().push(place);
        }
    }
    let repeated = places.into_iter().filter(|(_, places)| places.len() > 1);
    repeated
        .flat_map(|((_, name), places)| {
            places.into_iter().map(move |place| format!("{place}: another type of this crate is named {name}"))
        })
        .collect()
}

/// Collects the names of all types that a file defines.
struct Types(Vec<Ident>);

impl<'a> Visit<'a> for Types {
    fn visit_item(&mut self, item: &'a Item) {
        self.0.extend(match item {
            Item::Enum(item) => Some(item.ident.clone()),
            Item::Struct(item) => Some(item.ident.clone()),
            Item::Trait(item) => Some(item.ident.clone()),
            Item::Type(item) => Some(item.ident.clone()),
            Item::Union(item) => Some(item.ident.clone()),
            _ => None,
        });
        visit::visit_item(self, item);
    }
}

/// Parameters of functions that are tuple patterns.
pub fn tuple_parameters(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        let mut functions = Tupled(Vec::new());
        functions.visit_file(&source.file);
        let lines = functions.0.iter();
        found.extend(lines.map(|name| format!("{}: a parameter of {name} is a tuple pattern", place(source, name))));
    }
    found
}

/// Collects the names of functions with a tuple pattern as a parameter.
struct Tupled(Vec<Ident>);

impl<'a> Visit<'a> for Tupled {
    fn visit_signature(&mut self, signature: &'a Signature) {
        let mut patterns = signature.inputs.iter().filter_map(|input| match input {
            FnArg::Typed(typed) => Some(&*typed.pat),
            FnArg::Receiver(_) => None,
        });
        if patterns.any(|pattern| matches!(pattern, Pat::Tuple(_))) {
            self.0.push(signature.ident.clone());
        }
        visit::visit_signature(self, signature);
    }
}

/// Closures that are bound to a name and used once.
pub fn closures_used_once(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        let mut closures = Closures(Vec::new());
        closures.visit_file(&source.file);
        found.extend(closures.0.iter().map(|name| {
            format!("{}: the closure {name} is used once: write it where it is used", place(source, name))
        }));
    }
    found
}

/// Collects the names of closures that the rest of their block uses once.
struct Closures(Vec<Ident>);

impl<'a> Visit<'a> for Closures {
    fn visit_block(&mut self, block: &'a Block) {
        for (index, statement) in block.stmts.iter().enumerate() {
            let Stmt::Local(local) = statement else { continue };
            let Pat::Ident(pattern) = &local.pat else { continue };
            let Some(init) = &local.init else { continue };
            if matches!(*init.expr, Expr::Closure(_)) {
                let mut uses = Uses { name: &pattern.ident, count: 0 };
                block.stmts[index + 1..].iter().for_each(|rest| uses.visit_stmt(rest));
                if uses.count == 1 {
                    self.0.push(pattern.ident.clone());
                }
            }
        }
        visit::visit_block(self, block);
    }
}

/// Counts how often code uses a name, calls of macros included.
struct Uses<'n> {
    name: &'n Ident,
    count: usize,
}

impl<'a> Visit<'a> for Uses<'_> {
    fn visit_ident(&mut self, ident: &'a Ident) {
        self.count += usize::from(ident == self.name);
    }

    fn visit_field_value(&mut self, field: &'a FieldValue) {
        // In the short form, the member is the expression.
        visit::visit_expr(self, &field.expr);
    }

    fn visit_macro(&mut self, call: &'a Macro) {
        self.count += in_tokens(call.tokens.clone(), self.name);
    }
}

/// How often a name occurs in the tokens of a macro call; `{name}` in a literal is a use.
fn in_tokens(tokens: TokenStream, name: &Ident) -> usize {
    tokens
        .into_iter()
        .map(|token| match token {
            TokenTree::Ident(ident) => usize::from(ident == *name),
            TokenTree::Group(group) => in_tokens(group.stream(), name),
            TokenTree::Literal(literal) => usize::from(literal.to_string().contains(&format!("{{{name}"))),
            TokenTree::Punct(_) => 0,
        })
        .sum()
}

/// Files beside a folder of the same name, files of tests outside a module's folder, and paths given by hand.
pub fn modules_out_of_place(root: &Path, sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        let path = Path::new(&source.path);
        if root.join(path.with_extension("")).is_dir() {
            found.push(format!("{}:1: lies beside a folder of its name: move it to mod.rs there", source.path));
        }
        if path.file_stem().is_some_and(|name| name.to_string_lossy().ends_with("_tests")) {
            found.push(format!("{}:1: unit tests belong to tests.rs in their module's folder", source.path));
        }
        let mut paths = PathAttributes(Vec::new());
        paths.visit_file(&source.file);
        found.extend(paths.0.iter().map(|name| format!("{}: module {name} has a #[path]", place(source, name))));
    }
    found
}

/// Collects the names of modules with a `path` attribute.
struct PathAttributes(Vec<Ident>);

impl<'a> Visit<'a> for PathAttributes {
    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        if item.attrs.iter().any(|attribute| attribute.path().is_ident("path")) {
            self.0.push(item.ident.clone());
        }
        visit::visit_item_mod(self, item);
    }
}

/// File and line of a name.
fn place(source: &Source, name: &Ident) -> String {
    format!("{}:{}", source.path, name.span().start().line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> [Source; 1] {
        [Source { path: "shared/a/src/lib.rs".into(), file: syn::parse_file(text).expect("it is Rust") }]
    }

    #[test]
    fn rules_find_their_violations_with_file_and_line() {
        let types = source("struct A;\nmod b {\n    enum A {}\n}\nimpl I for A {\n    type A = u8;\n}\n");
        let lines = repeated_types(&types);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[1].starts_with("shared/a/src/lib.rs:3: "), "{lines:?}");
        let lines = tuple_parameters(&source("fn f(a: (u8, u8)) {}\nfn g((a, b): (u8, u8)) {}\n"));
        assert_eq!(lines, ["shared/a/src/lib.rs:2: a parameter of g is a tuple pattern"]);
        let modules = source("#[path = \"b_tests.rs\"]\nmod tests {}\n");
        assert_eq!(
            modules_out_of_place(Path::new("."), &modules),
            ["shared/a/src/lib.rs:2: module tests has a #[path]"]
        );
    }

    #[test]
    fn only_closures_that_are_used_once_are_found() {
        let once = "fn f() {\n    let is = |x| x;\n    g(is);\n}\n";
        assert_eq!(closures_used_once(&source(once)).len(), 1);
        assert_eq!(closures_used_once(&source(&once.replace("g(is)", "S { is }"))).len(), 1);
        assert_eq!(closures_used_once(&source(&once.replace("g(is)", "g(is, is)"))).len(), 0);
        assert_eq!(closures_used_once(&source(&once.replace("g(is)", "println!(\"{} {}\", is(1), is(2))"))).len(), 0);
    }
}
