//! `promptgate completions` and `promptgate man`: documents that are made of the command line's own
//! definition.

use clap::CommandFactory;
use clap_complete::Shell;

use super::args::Cli;
use super::failure::Failure;
use super::output::print;

const NAME: &str = "promptgate";

pub(super) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), NAME, &mut script);
    print(String::from_utf8_lossy(&script).trim_end())
}

/// # Errors
/// There is no such command.
pub(super) fn man(command: Option<&str>) -> Result<(), Failure> {
    let mut root = Cli::command();
    root.build();
    let described = match command {
        None => root,
        Some(name) => {
            let found = root.find_subcommand(name).cloned();
            let unknown =
                || Failure::usage(format!("there is no command {name:?}; see promptgate --help"));
            // The page is found as `man promptgate-serve`.
            found.ok_or_else(unknown)?.name(format!("{NAME}-{name}"))
        }
    };
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(described).render(&mut page);
    rendered.map_err(|error| Failure::new(format!("the page cannot be written: {error}")))?;
    print(String::from_utf8_lossy(&page).trim_end())
}
