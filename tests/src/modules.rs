//! Which module of a crate uses which: reads the sources, resolves `use` and paths through re-exports to the module that defines a name,
//! and finds circles among the modules of each folder. Code under `cfg(test)` is left out.
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, ImplItemFn, Item, ItemMod, Macro, UseTree, Visibility,
    visit::{self, Visit},
};

/// Segments of a path below the crate's root.
type ModulePath = Vec<String>;

/// A name that a module imports.
struct Import {
    path: ModulePath,
    name: String,
}

#[derive(Default)]
struct Module {
    defined: BTreeSet<String>,
    imports: Vec<Import>,
    /// Every other path in its code.
    paths: Vec<ModulePath>,
}

/// The modules of a crate.
pub struct Modules(BTreeMap<ModulePath, Module>);

impl Modules {
    /// Reads a crate from its root file.
    ///
    /// # Panics
    /// A file cannot be read or parsed.
    pub fn read(file: &Path) -> Self {
        let mut modules = Self(BTreeMap::new());
        modules.load(file, Vec::new());
        modules
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.0.len() < 2
    }

    fn load(&mut self, file: &Path, name: ModulePath) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("cannot parse {}: {error}", file.display()));
        let is_folder = ["lib.rs", "main.rs", "mod.rs"].iter().any(|root| file.ends_with(root));
        let folder =
            if is_folder { file.parent().expect("a file lies in a folder").into() } else { file.with_extension("") };
        self.add(&parsed.items, name, &folder);
    }

    fn add(&mut self, items: &[Item], name: ModulePath, folder: &Path) {
        let mut module = Module::default();
        for item in items {
            match item {
                Item::Mod(inner) if is_test(&inner.attrs) => {}
                Item::Mod(inner) => self.add_child(inner, &name, folder),
                Item::Use(item) => {
                    if !is_test(&item.attrs) {
                        imports(&item.tree, &mut Vec::new(), &mut module.imports);
                        let _ = matches!(item.vis, Visibility::Inherited);
                    }
                }
                other => {
                    module.defined.extend(defined(other));
                    Paths(&mut module.paths).visit_item(other);
                }
            }
        }
        self.0.insert(name, module);
    }

    fn add_child(&mut self, inner: &ItemMod, name: &ModulePath, folder: &Path) {
        let child: ModulePath = name.iter().cloned().chain([inner.ident.to_string()]).collect();
        let below = folder.join(inner.ident.to_string());
        match &inner.content {
            Some((_, items)) => self.add(items, child, &below),
            None => {
                let files = [below.with_extension("rs"), below.join("mod.rs")];
                let file: &PathBuf = files.iter().find(|file| file.is_file()).expect("a module has a file");
                self.load(file, child);
            }
        }
    }

    /// A path as written in a module, from the crate's root; `None` if it leads out of the crate or begins with a local name.
    fn absolute(&self, module: &ModulePath, path: &[String]) -> Option<ModulePath> {
        let mut base = module.clone();
        match path.first()?.as_str() {
            "crate" => return Some(path[1..].to_vec()),
            "self" => return Some(base.into_iter().chain(path[1..].iter().cloned()).collect()),
            "super" => {
                let ups = path.iter().take_while(|segment| *segment == "super").count();
                base.truncate(base.len().saturating_sub(ups));
                return Some(base.into_iter().chain(path[ups..].iter().cloned()).collect());
            }
            first => base.push(first.into()),
        }
        self.0.contains_key(&base).then(|| module.iter().chain(path).cloned().collect())
    }

    /// The module that defines what a path names.
    fn home(&self, path: &[String], depth: usize) -> Option<ModulePath> {
        let inside = (0..=path.len()).rev().find(|length| self.0.contains_key(&path[..*length]))?;
        let (name, rest) = (path[..inside].to_vec(), &path[inside..]);
        let Some(item) = rest.first().filter(|item| *item != "*" && depth > 0) else { return Some(name) };
        let module = &self.0[&name];
        if module.defined.contains(item) {
            return Some(name);
        }
        if let Some(import) = module.imports.iter().find(|import| import.name == *item) {
            let target: ModulePath =
                self.absolute(&name, &import.path)?.into_iter().chain(rest[1..].iter().cloned()).collect();
            return self.home(&target, depth - 1);
        }
        for import in module.imports.iter().filter(|import| import.name == "*") {
            let Some(mut target) = self.absolute(&name, &import.path) else { continue };
            target.pop();
            if self.0.get(&target).is_some_and(|module| module.defined.contains(item)) {
                return Some(target);
            }
        }
        Some(name)
    }

    /// The modules that a module uses.
    fn uses(&self, name: &ModulePath, module: &Module) -> BTreeSet<ModulePath> {
        let imported = module.imports.iter().map(|import| &import.path);
        let paths = module.paths.iter().filter_map(|path| {
            let first = path.first()?;
            let import = module.imports.iter().find(|import| import.name == *first);
            match import {
                Some(import) => Some(import.path.iter().cloned().chain(path[1..].iter().cloned()).collect()),
                None => Some(path.clone()),
            }
        });
        // A re-export of a child is no use of it.
        let whole: Vec<ModulePath> = imported.cloned().chain(paths).collect();
        whole.iter().filter_map(|path| self.home(&self.absolute(name, path)?, 8)).filter(|home| home != name).collect()
    }

    /// Circles among the modules of each folder, a line each with the files that close them.
    pub fn circles(&self) -> Vec<String> {
        let mut arrows: BTreeMap<ModulePath, BTreeMap<ModulePath, String>> = BTreeMap::new();
        for (from, module) in &self.0 {
            for to in self.uses(from, module) {
                let shared = from.iter().zip(&to).take_while(|(one, two)| one == two).count();
                // A module and what lies below it belong together.
                if shared < from.len() && shared < to.len() {
                    let why = format!("{} uses {}", from.join("::"), to.join("::"));
                    arrows.entry(from[..=shared].to_vec()).or_default().entry(to[..=shared].to_vec()).or_insert(why);
                }
            }
        }
        let mut found = Vec::new();
        let mut left: BTreeSet<&ModulePath> = arrows.keys().collect();
        // What uses nothing that is left is in no circle.
        loop {
            let free: Vec<&ModulePath> =
                left.iter().filter(|name| !arrows[**name].keys().any(|to| left.contains(to))).copied().collect();
            if free.is_empty() {
                break;
            }
            free.iter().for_each(|name| {
                left.remove(*name);
            });
        }
        for name in &left {
            found.extend(arrows[*name].iter().filter(|(to, _)| left.contains(to)).map(|(_, why)| why.clone()));
        }
        found
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let tokens = attribute.meta.require_list().map(|list| list.tokens.to_string()).unwrap_or_default();
        attribute.path().is_ident("cfg") && tokens.contains("test") && !tokens.contains("not")
    })
}

fn imports(tree: &UseTree, before: &mut ModulePath, found: &mut Vec<Import>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            imports(&path.tree, before, found);
            before.pop();
        }
        UseTree::Name(name) if name.ident == "self" => {
            let own = before.last().cloned().unwrap_or_default();
            found.push(Import { path: before.clone(), name: own });
        }
        UseTree::Name(name) => {
            found.push(Import { path: joined(before, &name.ident.to_string()), name: name.ident.to_string() })
        }
        UseTree::Rename(rename) => {
            found.push(Import { path: joined(before, &rename.ident.to_string()), name: rename.rename.to_string() });
        }
        UseTree::Glob(_) => found.push(Import { path: joined(before, "*"), name: "*".into() }),
        UseTree::Group(group) => group.items.iter().for_each(|tree| imports(tree, before, found)),
    }
}

fn joined(before: &ModulePath, last: &str) -> ModulePath {
    before.iter().cloned().chain([last.to_owned()]).collect()
}

fn defined(item: &Item) -> Option<String> {
    Some(match item {
        Item::Const(item) => item.ident.to_string(),
        Item::Enum(item) => item.ident.to_string(),
        Item::Fn(item) => item.sig.ident.to_string(),
        Item::Macro(item) => item.ident.as_ref()?.to_string(),
        Item::Static(item) => item.ident.to_string(),
        Item::Struct(item) => item.ident.to_string(),
        Item::Trait(item) => item.ident.to_string(),
        Item::Type(item) => item.ident.to_string(),
        _ => return None,
    })
}

/// Collects the paths of more than one segment in an item, those in calls of macros included.
struct Paths<'a>(&'a mut Vec<ModulePath>);

impl<'a> Visit<'a> for Paths<'_> {
    fn visit_path(&mut self, path: &'a syn::Path) {
        if path.segments.len() > 1 {
            self.0.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a Macro) {
        paths_in(call.tokens.clone(), self.0);
        visit::visit_macro(self, call);
    }

    fn visit_impl_item_fn(&mut self, item: &'a ImplItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item(&mut self, item: &'a Item) {
        let attributes = match item {
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Const(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
    }
}

fn paths_in(tokens: TokenStream, found: &mut Vec<ModulePath>) {
    let mut path: ModulePath = Vec::new();
    let mut colons = 0;
    for token in tokens {
        match token {
            TokenTree::Ident(name) if colons == 2 || path.is_empty() => {
                path.push(name.to_string());
                colons = 0;
            }
            TokenTree::Punct(mark) if mark.as_char() == ':' && colons < 2 => colons += 1,
            other => {
                if path.len() > 1 {
                    found.push(path.clone());
                }
                path.clear();
                colons = 0;
                match other {
                    TokenTree::Group(group) => paths_in(group.stream(), found),
                    TokenTree::Ident(name) => path.push(name.to_string()),
                    _ => {}
                }
            }
        }
    }
    if path.len() > 1 {
        found.push(path);
    }
}
