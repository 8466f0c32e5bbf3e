"""The language of a file by its name, in the names of tree-sitter-language-pack's grammars where there is one.

The names that pygments uses ("c++", "restructuredtext", "docker") are not the grammars', so the table is our own.
Languages without a grammar are named too, so that the ledger can say what a file was read as.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

# Known by name; there is no grammar for them, or one that is not to be used.
WITHOUT_GRAMMAR = frozenset(
    [
        *("text", "mdx", "batch", "csv", "tsv", "diff", "lock", "log", "gosum", "json5", "asciidoc", "protobuf_text"),
        *("awk", "sed", "gdscript_resource", "gdshader", "visualbasic", "crystal", "coffeescript", "less", "sass"),
        # Scanners of these two can loop for ever on a few bytes.
        *("cobol", "perl"),
        *("stylus", "handlebars", "jinja", "liquid", "pug", "slim", "haml", "graphviz", "plantuml", "notebook"),
    ]
)

_EXTENSIONS = {
    "actionscript": "as",
    "ada": "adb ads ada",
    "agda": "agda",
    "apex": "apex trigger",
    "arduino": "ino pde",
    "asciidoc": "adoc asciidoc asc",
    "asm": "asm s",
    "astro": "astro",
    "awk": "awk",
    "bash": "sh bash zsh ksh ebuild eclass bats",
    "batch": "bat cmd",
    "beancount": "beancount",
    "bibtex": "bib",
    "bicep": "bicep",
    "bitbake": "bb bbappend bbclass",
    "c": "c idc",
    "cairo": "cairo",
    "capnp": "capnp",
    "clarity": "clar",
    "clojure": "clj cljs cljc edn",
    "cmake": "cmake",
    "cobol": "cob cbl cpy",
    "coffeescript": "coffee",
    "commonlisp": "lisp lsp cl asd",
    "cpp": "cpp cxx cc c++ hpp hxx hh h++ h ipp inl tpp ixx cppm",
    "crystal": "cr",
    "csharp": "cs csx cake",
    "css": "css",
    "csv": "csv",
    "cuda": "cu cuh",
    "d": "d di",
    "dart": "dart",
    "diff": "diff patch",
    "dockerfile": "dockerfile containerfile",
    "dtd": "dtd",
    "elisp": "el",
    "elixir": "ex exs",
    "elm": "elm",
    "embeddedtemplate": "erb ejs rhtml",
    "erlang": "erl hrl escript",
    "fennel": "fnl",
    "fish": "fish",
    "fortran": "f90 f95 f03 f08 f for ftn",
    "fsharp": "fs fsx",
    "fsharp_signature": "fsi",
    "func": "fc func",
    "gdscript": "gd",
    "gdscript_resource": "tscn tres",
    "gdshader": "gdshader gdshaderinc",
    "gleam": "gleam",
    "glsl": "glsl vert frag geom comp tesc tese",
    "gn": "gn gni",
    "go": "go",
    "graphql": "graphql graphqls gql",
    "graphviz": "dot gv",
    "groovy": "groovy gradle gvy jenkinsfile",
    "hack": "hack hhi",
    "haml": "haml",
    "handlebars": "hbs handlebars mustache",
    "hare": "ha",
    "haskell": "hs lhs",
    "haxe": "hx",
    "hcl": "hcl nomad",
    "heex": "heex leex",
    "hlsl": "hlsl hlsli fx",
    "html": "html htm xhtml",
    "ini": "ini cfg inf editorconfig",
    "ispc": "ispc",
    "janet": "janet",
    "java": "java jsh",
    "javascript": "js jsm mjs cjs jsx es6",
    "jinja": "j2 jinja jinja2",
    "json": "json jsonl ndjson jsonc geojson webmanifest avsc",
    "json5": "json5",
    "jsonnet": "jsonnet libsonnet",
    "julia": "jl",
    "kdl": "kdl",
    "kotlin": "kt kts",
    "latex": "tex sty ltx dtx",
    "less": "less",
    "linkerscript": "ld lds",
    "liquid": "liquid",
    "lock": "lock",
    "llvm": "ll",
    "log": "log",
    "lua": "lua wlua rockspec",
    "luau": "luau",
    "make": "mk mak make",
    "markdown": "md markdown mkd mkdn mdown qmd rmd",
    "matlab": "mlx",
    "mdx": "mdx",
    "mermaid": "mmd mermaid",
    "meson": "meson",
    "nim": "nim nims nimble",
    "ninja": "ninja",
    "nix": "nix",
    "notebook": "ipynb",
    "objc": "m mm",
    "ocaml": "ml mll mly",
    "ocaml_interface": "mli",
    "odin": "odin",
    "org": "org",
    "pascal": "pas dpr lpr",
    "pem": "pem crt",
    "perl": "pl pm t perl",
    "php": "php php3 php4 php5 phtml inc",
    "plantuml": "puml plantuml",
    "po": "po pot",
    "pony": "pony",
    "powershell": "ps1 psm1 psd1",
    "prisma": "prisma",
    "properties": "properties",
    "proto": "proto",
    "protobuf_text": "pbtxt textproto prototxt",
    "pug": "pug jade",
    "puppet": "pp",
    "purescript": "purs",
    "python": "py pyw pyi pyx pxd jy sage tac",
    "qmljs": "qml",
    "r": "r",
    "racket": "rkt rktl rktd",
    "rego": "rego",
    "ron": "ron",
    "rst": "rst rest",
    "ruby": "rb rbw rake gemspec ru podspec rbi jbuilder",
    "rust": "rs",
    "sass": "sass",
    "scala": "scala sc sbt",
    "scheme": "scm ss sld",
    "scss": "scss",
    "sed": "sed",
    "slim": "slim",
    "smali": "smali",
    "smithy": "smithy",
    "solidity": "sol",
    "sparql": "rq sparql",
    "sql": "sql psql pgsql ddl dml hql",
    "squirrel": "nut",
    "starlark": "bzl star bazel",
    "stylus": "styl",
    "svelte": "svelte",
    "swift": "swift swiftinterface",
    "tablegen": "td",
    "tcl": "tcl tk",
    "terraform": "tf tfvars",
    "text": "txt text",
    "thrift": "thrift",
    "toml": "toml",
    "tsv": "tsv",
    "tsx": "tsx",
    "twig": "twig",
    "typescript": "ts mts cts",
    "typst": "typ",
    "v": "vv vsh",
    "verilog": "v sv svh vh",
    "vhdl": "vhd vhdl",
    "vim": "vim",
    "visualbasic": "vb vbs bas",
    "vue": "vue",
    "wast": "wast",
    "wat": "wat",
    "wgsl": "wgsl",
    "xml": "xml xsl xslt xsd rss atom wsdl svg pom csproj fsproj vbproj vcxproj props targets nuspec resx xaml axaml "
    "plist storyboard xib xlf xliff dita config kml gpx",
    "yaml": "yaml yml clang-format clang-tidy",
    "yuck": "yuck",
    "zig": "zig zon",
}

_FILE_NAMES = {
    "bash": ".bashrc .bash_profile .bash_aliases .profile .zshrc .zprofile .zshenv .kshrc bashrc zshrc pkgbuild .envrc "
    "gradlew mvnw configure",
    "cmake": "cmakelists.txt",
    "dockerfile": "dockerfile containerfile",
    "gitattributes": ".gitattributes",
    "gitignore": ".gitignore .dockerignore .npmignore .prettierignore .eslintignore .helmignore",
    "gosum": "go.sum",
    "gomod": "go.mod go.work",
    "groovy": "jenkinsfile",
    "ini": ".editorconfig .gitconfig .gitmodules .npmrc .pylintrc .flake8 .coveragerc setup.cfg tox.ini",
    "json": ".babelrc .eslintrc .prettierrc .swcrc pipfile.lock",
    "kconfig": "kconfig",
    "make": "makefile gnumakefile bsdmakefile",
    "meson": "meson.build meson.options meson_options.txt",
    "properties": "gradle.properties",
    "pymanifest": "manifest.in",
    "python": "sconstruct sconscript wscript",
    "ruby": "rakefile gemfile vagrantfile brewfile podfile fastfile appfile guardfile berksfile capfile dangerfile",
    "starlark": "build build.bazel workspace workspace.bazel module.bazel buck tiltfile",
    "text": "license licence copying notice authors contributors changelog changes readme version codeowners "
    ".env .env.example",
    "toml": "poetry.lock pipfile",
    "vim": ".vimrc _vimrc .gvimrc",
    "xml": "packages.config web.config app.config",
    "yaml": ".clang-format .clang-tidy .yamllint",
}

_BY_EXTENSION = {extension: language for language, names in _EXTENSIONS.items() for extension in names.split()}
_BY_FILE_NAME = {name: language for language, names in _FILE_NAMES.items() for name in names.split()}

# What the kernels of notebooks call their languages.
_KERNELS = {
    "c#": "csharp",
    ".net-csharp": "csharp",
    "f#": "fsharp",
    ".net-fsharp": "fsharp",
    ".net-powershell": "powershell",
    "pwsh": "powershell",
    "c++": "cpp",
    "c++11": "cpp",
    "c++14": "cpp",
    "c++17": "cpp",
    "ipython": "python",
    "ipython2": "python",
    "ipython3": "python",
    "python2": "python",
    "python3": "python",
    "pyspark": "python",
    "py": "python",
    "js": "javascript",
    "node": "javascript",
    "nodejs": "javascript",
    "ts": "typescript",
    "tslab": "typescript",
    "deno": "typescript",
    "ir": "r",
    "rust": "rust",
    "evcxr": "rust",
    "sh": "bash",
    "shell": "bash",
    "wolfram language": "mathematica",
    "common-lisp": "commonlisp",
}


def language_of(path: str) -> str | None:
    """Language of a file by its path (`python`, `dockerfile`, `text` ...), or None when the name says nothing."""
    name = path.rsplit("/", 1)[-1].lower()
    if name in _BY_FILE_NAME:
        return _BY_FILE_NAME[name]
    _, dot, extension = name.rpartition(".")
    if dot and extension in _BY_EXTENSION:
        return _BY_EXTENSION[extension]
    # `Dockerfile.gpu`, `Makefile.am`, `Jenkinsfile-nightly`: named by the first part.
    for head in ("dockerfile", "containerfile", "makefile", "jenkinsfile"):
        if name.startswith((head + ".", head + "-", head + "_")):
            return _BY_FILE_NAME[head]
    return None


def notebook_language(name: str) -> str | None:
    """Language of a notebook by what its metadata call the kernel's language; None when they say nothing."""
    name = name.strip().lower()
    return _KERNELS.get(name, name) or None


def grammar_of(language: str | None) -> str | None:
    """Name of the grammar that parses a language, or None when there is none."""
    if language is None or language in WITHOUT_GRAMMAR or language not in _grammars():
        return None
    return language


def parser_of(grammar: str) -> Any:
    """A tree-sitter parser; raises LookupError when the grammar cannot be had."""
    from tree_sitter_language_pack import get_parser

    return get_parser(grammar)  # type: ignore[arg-type]


@lru_cache(maxsize=1)
def _grammars() -> frozenset[str]:
    from typing import get_args

    import tree_sitter_language_pack as pack

    return frozenset(get_args(pack.SupportedLanguage))
