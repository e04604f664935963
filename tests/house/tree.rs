//! The source tree as the compiler sees it: modules, what they define, and what each file takes from others.
//!
//! Paths are resolved through nested imports, `self`, `super`, re-exports and globs, and those inside macro calls count
//! too. Re-exports of a `mod.rs` do not: a folder's face is not a use of what stands behind it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::{Attribute, Item, UseTree, Visibility};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The path of a module: `["limits", "rule"]` for `crate::limits::rule`.
pub(super) type ModPath = Vec<String>;

/// All modules of the crate.
#[derive(Debug, Default)]
pub(super) struct Tree {
    modules: BTreeMap<ModPath, Module>,
}

/// A module, inline or a file of its own.
#[derive(Debug)]
pub(super) struct Module {
    /// Relative to the project, with `/`.
    pub(super) file: String,
    /// Compiled for tests only.
    pub(super) is_test: bool,
    /// Names of types it defines.
    pub(super) types: Vec<String>,
    /// Types with an inherent `impl` here.
    pub(super) impls: BTreeSet<String>,
    defined: BTreeSet<String>,
    children: BTreeSet<String>,
    imports: Vec<Import>,
    /// All other paths.
    paths: Vec<Vec<String>>,
}

#[derive(Debug)]
struct Import {
    path: Vec<String>,
    /// `*` for a glob.
    name: String,
    is_public: bool,
}

/// What a path leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Module(ModPath),
    /// A definition, and the module it stands in.
    Definition(ModPath),
}

impl Tree {
    /// Reads `src/`.
    pub(super) fn read() -> Self {
        let mut tree = Self::default();
        tree.load(Vec::new(), &Path::new(ROOT).join("src/lib.rs"), false);
        assert!(tree.modules.len() > 100, "the tree was not found");
        tree
    }

    /// A tree of files that are given as texts, for the tests of this one.
    pub(super) fn of(files: &[(&[&str], &str)]) -> Self {
        let mut tree = Self::default();
        for (path, text) in files {
            let path: ModPath = path.iter().map(|&name| name.to_owned()).collect();
            let file = format!("src/{}.rs", path.join("/"));
            let syntax = syn::parse_file(text).expect("Rust");
            tree.enter(path, Path::new(&file), syntax.items, false, false);
        }
        tree
    }

    pub(super) fn modules(&self) -> impl Iterator<Item = (&ModPath, &Module)> {
        self.modules.iter()
    }

    /// The files that each file takes something from, by the modules that define it.
    pub(super) fn uses(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (path, module) in &self.modules {
            let all = module
                .imports
                .iter()
                .filter(|import| !(import.is_public && module.file.ends_with("/mod.rs")))
                .map(|import| &import.path)
                .chain(&module.paths);
            for used in all {
                let Some(Target::Definition(definer)) = self.resolve(path, used, 0) else {
                    continue;
                };
                let other = &self.modules[&definer];
                if other.file != module.file && !other.is_test && !module.is_test {
                    let own = uses.entry(module.file.clone()).or_default();
                    own.insert(other.file.clone());
                }
            }
        }
        uses
    }

    /// The top-level folders that each module uses, by any path.
    pub(super) fn folders_used(&self) -> Vec<(&Module, String, String)> {
        let mut used = BTreeSet::new();
        for (path, module) in &self.modules {
            let Some(own) = path.first() else { continue };
            let imports = module.imports.iter().map(|import| &import.path);
            for other in imports.chain(&module.paths) {
                let folder = match self.resolve(path, other, 0) {
                    Some(Target::Definition(at) | Target::Module(at)) => at.first().cloned(),
                    None => (other[0] == "crate")
                        .then(|| other.get(1).cloned())
                        .flatten(),
                };
                if let Some(folder) = folder.filter(|folder| folder != own) {
                    used.insert((path, own.clone(), folder));
                }
            }
        }
        let named = |(path, own, folder)| (&self.modules[path], own, folder);
        used.into_iter().map(named).collect()
    }

    /// Imports that reach behind another folder's face: `crate::folder::file::Name`.
    pub(super) fn deep_imports(&self) -> Vec<(&str, String)> {
        let mut deep = Vec::new();
        for (path, module) in &self.modules {
            for import in &module.imports {
                let [first, folder, file, _, ..] = &import.path[..] else {
                    continue;
                };
                let is_module = self
                    .modules
                    .contains_key(&vec![folder.clone(), file.clone()]);
                if first == "crate" && Some(folder) != path.first() && is_module {
                    deep.push((&*module.file, import.path.join("::")));
                }
            }
        }
        deep
    }

    fn load(&mut self, path: ModPath, file: &Path, is_test: bool) {
        let text = std::fs::read_to_string(file).expect("a source");
        let syntax =
            syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.enter(path, file, syntax.items, is_test, true);
    }

    fn enter(&mut self, path: ModPath, file: &Path, items: Vec<Item>, is_test: bool, load: bool) {
        let relative = file.strip_prefix(ROOT).unwrap_or(file);
        let mut module = Module {
            file: relative.to_string_lossy().into_owned(),
            is_test,
            types: Vec::new(),
            impls: BTreeSet::new(),
            defined: BTreeSet::new(),
            children: BTreeSet::new(),
            imports: Vec::new(),
            paths: Vec::new(),
        };
        for item in items {
            if let Item::Mod(inner) = item {
                let name = inner.ident.to_string();
                // With a feature and without: the first declaration is the one that counts.
                if !module.children.insert(name.clone()) {
                    continue;
                }
                let is_test = is_test || for_tests(&inner.attrs);
                let mut below = path.clone();
                below.push(name.clone());
                match inner.content {
                    Some((_, items)) => self.enter(below, file, items, is_test, load),
                    None if load => {
                        let beside = declared_file(&path, file, &name, &inner.attrs);
                        self.load(below, &beside, is_test);
                    }
                    None => {}
                }
                continue;
            }
            module.take(&item);
        }
        self.modules.insert(path, module);
    }

    fn resolve(&self, at: &ModPath, path: &[String], depth: u8) -> Option<Target> {
        if depth > 12 {
            return None;
        }
        let mut current = at.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => (current, rest) = (Vec::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while let Some((first, others)) = rest.split_first()
                    && first == "super"
                {
                    current.pop()?;
                    rest = others;
                }
            }
            _ => {}
        }
        for (number, name) in rest.iter().enumerate() {
            match self.look_up(&current, name, depth, number + 1 < rest.len())? {
                Target::Module(module) => current = module,
                found @ Target::Definition(_) => return Some(found),
            }
        }
        Some(Target::Module(current))
    }

    fn look_up(&self, at: &ModPath, name: &str, depth: u8, as_module: bool) -> Option<Target> {
        let module = self.modules.get(at)?;
        let child = || {
            module.children.contains(name).then(|| {
                let mut path = at.clone();
                path.push(name.to_owned());
                Target::Module(path)
            })
        };
        if as_module && let Some(found) = child() {
            return Some(found);
        }
        if module.defined.contains(name) {
            return Some(Target::Definition(at.clone()));
        }
        if let Some(found) = child() {
            return Some(found);
        }
        let named = module.imports.iter().filter(|import| import.name == name);
        let globs = module.imports.iter().filter(|import| import.name == "*");
        for import in named {
            // `use serde_yaml::x` names a crate, not this very import.
            if import.path.len() == 1 && import.path[0] == name {
                continue;
            }
            if let Some(found) = self.resolve(at, &import.path, depth + 1) {
                return Some(found);
            }
        }
        for import in globs {
            if let Some(Target::Module(other)) = self.resolve(at, &import.path, depth + 1)
                && other != *at
                && let Some(found) = self.look_up(&other, name, depth + 1, as_module)
            {
                return Some(found);
            }
        }
        None
    }
}

impl Module {
    fn take(&mut self, item: &Item) {
        match item {
            Item::Use(import) => {
                let is_public = !matches!(import.vis, Visibility::Inherited);
                flatten(&import.tree, &mut Vec::new(), is_public, &mut self.imports);
                return;
            }
            Item::Const(item) => self.define(&item.ident),
            Item::Fn(item) => self.define(&item.sig.ident),
            Item::Static(item) => self.define(&item.ident),
            Item::Enum(item) => self.define_type(&item.ident),
            Item::Struct(item) => self.define_type(&item.ident),
            Item::Trait(item) => self.define_type(&item.ident),
            Item::Type(item) => self.define_type(&item.ident),
            Item::Impl(item) if item.trait_.is_none() => {
                if let syn::Type::Path(of) = &*item.self_ty
                    && let Some(last) = of.path.segments.last()
                {
                    self.impls.insert(last.ident.to_string());
                }
            }
            Item::Macro(item) => {
                if let Some(name) = &item.ident {
                    self.define(name);
                }
                self.define_in(item.mac.tokens.clone());
            }
            _ => {}
        }
        let tokens = quote::ToTokens::to_token_stream(item);
        collect(tokens, &mut self.paths);
    }

    fn define(&mut self, name: &syn::Ident) {
        self.defined.insert(name.to_string());
    }

    fn define_type(&mut self, name: &syn::Ident) {
        self.define(name);
        self.types.push(name.to_string());
    }

    /// Types that a macro call makes.
    fn define_in(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        for pair in tokens.windows(2) {
            if let [TokenTree::Ident(keyword), TokenTree::Ident(name)] = pair
                && (keyword == "struct" || keyword == "enum")
            {
                self.define_type(name);
            }
        }
    }
}

fn for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && quote::ToTokens::to_token_stream(attribute)
                .to_string()
                .contains("test")
    })
}

/// The file of `mod name;`.
fn declared_file(path: &ModPath, file: &Path, name: &str, attributes: &[Attribute]) -> PathBuf {
    let folder = file.parent().expect("a folder");
    let given = attributes.iter().find_map(|attribute| {
        let syn::Meta::NameValue(pair) = &attribute.meta else {
            return None;
        };
        match &pair.value {
            syn::Expr::Lit(syn::ExprLit {
                lit: syn::Lit::Str(text),
                ..
            }) if pair.path.is_ident("path") => Some(text.value()),
            _ => None,
        }
    });
    if let Some(given) = given {
        return folder.join(given);
    }
    let stem = file.file_stem().expect("a name").to_string_lossy();
    let own_folder =
        path.is_empty() || stem == "mod" || path.last().is_some_and(|own| *own != stem);
    let folder = if own_folder {
        folder.to_owned()
    } else {
        folder.join(&*stem)
    };
    let plain = folder.join(format!("{name}.rs"));
    if plain.exists() {
        plain
    } else {
        folder.join(name).join("mod.rs")
    }
}

fn flatten(tree: &UseTree, prefix: &mut Vec<String>, is_public: bool, found: &mut Vec<Import>) {
    let mut add = |path: Vec<String>, name: String| {
        found.push(Import {
            path,
            name,
            is_public,
        });
    };
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten(&path.tree, prefix, is_public, found);
            prefix.pop();
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, prefix, is_public, found);
            }
        }
        UseTree::Glob(_) => add(prefix.clone(), "*".to_owned()),
        UseTree::Name(name) if name.ident == "self" => {
            add(prefix.clone(), prefix.last().cloned().unwrap_or_default());
        }
        UseTree::Name(name) => {
            let path = [&prefix[..], &[name.ident.to_string()]].concat();
            add(path, name.ident.to_string());
        }
        UseTree::Rename(rename) => {
            let path = match rename.ident == "self" {
                true => prefix.clone(),
                false => [&prefix[..], &[rename.ident.to_string()]].concat(),
            };
            add(path, rename.rename.to_string());
        }
    }
}

/// Every `a::b::c` in the tokens of an item, those in macro calls included.
fn collect(tokens: TokenStream, paths: &mut Vec<Vec<String>>) {
    let mut path: Vec<String> = Vec::new();
    // How many colons stand behind the path so far.
    let mut colons = 0;
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => {
                if colons != 2 {
                    finish(&mut path, paths);
                }
                path.push(ident.to_string());
                colons = 0;
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' && colons < 2 => colons += 1,
            TokenTree::Group(group) => {
                finish(&mut path, paths);
                colons = 0;
                collect(group.stream(), paths);
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {
                finish(&mut path, paths);
                colons = 0;
            }
        }
    }
    finish(&mut path, paths);
}

fn finish(path: &mut Vec<String>, paths: &mut Vec<Vec<String>>) {
    let path = std::mem::take(path);
    if path.len() > 1 && path[0] != "Self" {
        paths.push(path);
    }
}
