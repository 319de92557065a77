#!/usr/bin/env node
// Starts the binary of this platform, which is in an optional package.
"use strict";

const { spawn } = require("node:child_process");

const platform = `@promptgate/${process.platform}-${process.arch}`;
let binary;
try {
  binary = require.resolve(`${platform}/promptgate`);
} catch {
  console.error(
    `promptgate: the package ${platform} is not installed. Install without --omit=optional; ` +
      "if there is no such package, build promptgate from source.",
  );
  process.exit(1);
}

const child = spawn(binary, process.argv.slice(2), { stdio: "inherit" });
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
  // A terminal sends SIGINT to both processes, and a second one would end the drain at once.
  process.on(signal, () => signal === "SIGINT" && process.stdin.isTTY || child.kill(signal));
}
child.on("error", (error) => {
  console.error(`promptgate: ${binary}: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => {
  if (signal) {
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
  } else {
    process.exit(code);
  }
});
