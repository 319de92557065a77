//! `promptgate init`: writes a commented configuration file and a first prompt.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use super::failure::Failure;
use super::output::print;

/// Lines that start with `#: ` are examples: without this mark they are valid, too.
const CONFIG: &str = include_str!("init/gateway.toml");
const PROMPT: &str = include_str!("init/explain-code.md");

pub(super) fn run() -> Result<(), Failure> {
    write(Path::new("gateway.toml"), CONFIG)?;
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

/// Creates a file. An existing file is not overwritten.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let file = OpenOptions::new().write(true).create_new(true).open(path);
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
    use crate::config::Config;

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
        assert_eq!(config.upstreams.len(), 3);
    }
}
