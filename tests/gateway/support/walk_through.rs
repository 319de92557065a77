//! Walk-throughs of documents: commands with their output, executed word for word.

use std::path::Path;

/// A command of a walk-through, what it prints, and its exit code.
pub struct Step {
    pub command: String,
    printed: String,
    code: i32,
}

/// The `$ ` lines of the `console` blocks of a document, each with the lines behind it.
pub fn walk_through(document: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for block in document.split("```console\n").skip(1) {
        let mut lines = block.split("```").next().unwrap_or_default().lines();
        while let Some(line) = lines.next() {
            if let Some(command) = line.strip_prefix("$ ") {
                let mut command = command.to_owned();
                if command.ends_with("<<'EOF'") || command.ends_with("<<EOF") {
                    for line in lines.by_ref() {
                        command = command + "\n" + line;
                        if line == "EOF" {
                            break;
                        }
                    }
                }
                steps.push(Step { command, printed: String::new(), code: 0 });
                continue;
            }
            let step = steps.last_mut().expect("a block begins with a command");
            match line.strip_prefix("# exit ") {
                Some(code) => step.code = code.parse().expect("an exit code"),
                None => step.printed += &format!("{line}\n"),
            }
        }
    }
    steps
}

impl Step {
    /// Runs the command in a folder, as the user `ada`, and compares its output and exit code.
    pub fn run(&self, folder: &Path, variables: &[(&str, &str)]) {
        let Self { command, printed, code } = self;
        let binary = Path::new(env!("CARGO_BIN_EXE_promptgate")).parent().unwrap();
        let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
        let is_ours = |name: &str| name.starts_with("PROMPTGATE");
        let mut shell = std::process::Command::new("sh");
        std::env::vars().map(|(name, _)| name).filter(|name| is_ours(name)).for_each(|name| {
            shell.env_remove(name);
        });
        let output = shell
            // On a terminal, both are one.
            .args(["-c", &format!("exec 2>&1\n{command}")])
            .current_dir(folder)
            .env("PATH", &path)
            .env("USER", "ada")
            .env("XDG_RUNTIME_DIR", folder)
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(*code), "$ {command}\n{said}");
        assert_eq!(said, *printed, "$ {command}");
    }
}
