//! The command line as a process: what goes in, what comes out, and with which exit code.

use std::process::{Command, Output};

/// The binary, with an environment that cannot change what it does.
fn escarp() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_escarp"));
    command.env_remove("ESCARP_MODEL").env_remove("RUST_LOG");
    command
}

fn run(arguments: &[&str]) -> Output {
    escarp().args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn completions_generate() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stdout(&output).contains("max-output-tokens"), "{shell}");
    }
}
