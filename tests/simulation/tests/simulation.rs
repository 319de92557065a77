//! The simulation as a test; `cargo test --test simulation -- --help` prints its arguments.

use std::process::ExitCode;

fn main() -> ExitCode {
    simulation::main()
}
