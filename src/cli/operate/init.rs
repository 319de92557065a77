//! `promptgate init`: writes a commented configuration file and a first prompt.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::import::{self, Imported};
use crate::cli::shared::failure::Failure;
use crate::cli::shared::output::{print, printable};
use config::Config;
use config::durable_file::{self, OpenOptions, Readers};

/// Lines that start with `#: ` are examples: without this mark they are valid, too.
const CONFIG: &str = include_str!("init/gateway.toml");
const PROMPT: &str = include_str!("init/explain-code.md");

/// Where the example upstream begins and ends: imported upstreams replace it.
const LIBRARY: (&str, &str) =
    ("# Prompts from Markdown files.", "# A prompt server over Streamable HTTP");

/// Files that a gateway writes at run time: keys, what people did, and sign-ins. The token is that
/// of docs/first-hour.md.
const IGNORED: [&str; 6] =
    ["/admin-token", "/audit.key", "/audit*/", "/git/", "/usage*/", "/logins/"];

pub(crate) fn run(from: Option<&Path>) -> Result<(), Failure> {
    if let Some(host) = from {
        return from_host(host);
    }
    write(Path::new("gateway.toml"), CONFIG)?;
    write_schema(Path::new("gateway.schema.json"))?;
    ignore(Path::new(".gitignore"))?;
    let prompt = Path::new("prompts/explain-code.md");
    if !prompt.exists() {
        fs::create_dir_all("prompts").map_err(|e| failure(prompt, &e))?;
        write(prompt, PROMPT)?;
    }
    print(&format!(
        "Created gateway.toml and {}. Start the gateway with `promptgate serve`, then list its \
         prompts with `promptgate list`.",
        prompt.display()
    ))
}

/// Writes the configuration with the servers of a host as its upstreams.
fn from_host(host: &Path) -> Result<(), Failure> {
    let Imported { toml, notes } = import::read(host)?;
    let before = CONFIG.split(LIBRARY.0).next().unwrap_or(CONFIG);
    let after = CONFIG.find(LIBRARY.1).map_or("", |at| &CONFIG[at..]);
    write(Path::new("gateway.toml"), &format!("{before}{toml}\n{after}"))?;
    write_schema(Path::new("gateway.schema.json"))?;
    ignore(Path::new(".gitignore"))?;
    notes.iter().for_each(|note| eprintln!("{}", printable(note)));
    print(
        "Created gateway.toml. Check its upstreams with `promptgate check --dial`, then start the gateway with `promptgate serve`.",
    )
}

/// Adds the lines that are missing to a `.gitignore`, so that no `git add` takes a key.
fn ignore(path: &Path) -> Result<(), Failure> {
    if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink()) {
        let (path, lines) = (path.display(), IGNORED.join(", "));
        eprintln!("{path} is a link, and was not changed: add these lines to its file: {lines}");
        return Ok(());
    }
    let before = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text.map_err(|error| failure(path, &error))?,
    };
    let has = |line: &&&str| before.lines().any(|own| own.trim() == **line);
    let missing: Vec<_> = IGNORED.iter().filter(|line| !has(line)).copied().collect();
    if missing.is_empty() {
        return Ok(());
    }
    let separator = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
    let added = format!(
        "{before}{separator}# Keys, and what promptgate writes while it runs.\n{}\n",
        missing.join("\n")
    );
    durable_file::replace(path, added, Readers::Usual).map_err(|error| failure(path, &error))
}

/// Writes the schema that the first line of the configuration names, for editors. It may be of an
/// older release.
fn write_schema(path: &Path) -> Result<(), Failure> {
    let schema = format!("{:#}\n", Config::schema());
    if fs::symlink_metadata(path).is_ok() {
        if fs::read_to_string(path).is_ok_and(|before| before == schema) {
            return Ok(());
        }
        eprintln!("{} was there already: it is replaced by that of this release.", path.display());
    }
    durable_file::replace(path, schema, Readers::Usual).map_err(|error| failure(path, &error))
}

/// Creates a file. An existing file is not overwritten.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let file = OpenOptions { write: true, create_new: true, ..OpenOptions::default() }.open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|e| failure(path, &e))
}

fn failure(path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    match error.kind() {
        io::ErrorKind::AlreadyExists => {
            Failure::new(format!("{path} already exists; move it away to create a new one"))
        }
        _ => Failure::new(format!("cannot write {path}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_gateway_writes_is_ignored_and_other_lines_stay() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(".gitignore");
        ignore(&file).unwrap();
        let first = fs::read_to_string(&file).unwrap();
        assert!(IGNORED.iter().all(|line| first.lines().any(|own| own == *line)), "{first}");
        ignore(&file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), first, "nothing is missing");
        fs::write(&file, "target\n/audit.key").unwrap();
        ignore(&file).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("target\n/audit.key\n# Keys, and what"), "{text}");
        assert_eq!(text.matches("/audit.key").count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn nothing_is_written_through_a_link() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        for name in ["gateway.schema.json", ".gitignore", "gateway.toml"] {
            fs::write(file("behind"), "of others").unwrap();
            symlink(file("behind"), file(name)).unwrap();
            let written = match name {
                ".gitignore" => ignore(&file(name)),
                "gateway.toml" => write(&file(name), CONFIG),
                _ => write_schema(&file(name)),
            };
            assert_eq!(written.is_err(), name == "gateway.toml", "{name}");
            assert_eq!(fs::read_to_string(file("behind")).unwrap(), "of others", "{name}");
        }
        let schema = fs::read_to_string(file("gateway.schema.json")).unwrap();
        assert!(schema.contains("$schema"), "{schema}");
    }

    #[test]
    fn the_created_configuration_and_its_examples_are_valid() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("prompts")).unwrap();
        let config = Config::parse("gateway.toml", CONFIG, folder.path(), &[]).unwrap();
        assert_eq!(config.upstreams.len(), 1);
        let active: String = CONFIG
            .lines()
            .map(|line| line.strip_prefix("#: ").unwrap_or(line))
            .fold(String::new(), |text, line| text + line + "\n");
        let env = [("REMOTE_TOKEN".to_owned(), "t".to_owned())];
        let config = Config::parse("gateway.toml", &active, folder.path(), &env).unwrap();
        assert_eq!(config.upstreams.len(), 4);
    }
}
