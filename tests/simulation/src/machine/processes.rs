//! Child processes that are tasks, with pipes in memory.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use base::platform::processes::{Child, Exit, Process, Processes, ProgramCommand, Signal};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, duplex};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::trace;

/// The programs of the machine, and the processes that run.
#[derive(Clone, Default)]
pub struct SimProcesses(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    programs: BTreeMap<String, Program>,
    started: u32,
    running: usize,
}

/// A program: from its standard streams to its exit code.
pub type Program = Arc<dyn Fn(Streams) -> Pin<Box<dyn Future<Output = i32> + Send>> + Send + Sync>;

/// The standard streams as the program has them.
pub struct Streams {
    pub input: DuplexStream,
    pub output: DuplexStream,
    pub errors: DuplexStream,
}

/// The capacity of a pipe.
const PIPE: usize = 64 << 10;

impl SimProcesses {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Installs a program.
    pub fn install(&self, name: &str, program: Program) {
        self.lock().programs.insert(name.to_owned(), program);
    }

    /// Returns how many processes run.
    pub fn running(&self) -> usize {
        self.lock().running
    }
}

impl Processes for SimProcesses {
    fn spawn(&self, command: &ProgramCommand) -> io::Result<Child> {
        let name = command.program.to_string_lossy().into_owned();
        let (program, id) = {
            let mut state = self.lock();
            let program = state.programs.get(&name).cloned();
            let program = program.ok_or(io::Error::from(io::ErrorKind::NotFound))?;
            state.started += 1;
            state.running += 1;
            (program, state.started)
        };
        trace::note(&name, &format!("process {id} starts"));
        let (stdin, input) = duplex(PIPE);
        let (output, stdout) = duplex(PIPE);
        let (errors, stderr) = duplex(PIPE);
        let (exits, exit) = watch::channel(None);
        let running = Running { processes: self.clone(), id, exits: exits.clone() };
        let body = program(Streams { input, output, errors });
        let task = tokio::spawn(async move {
            let running = running;
            let code = body.await;
            running.exits.send_replace(Some(Exit::Code(code)));
        });
        let process = SimProcess { id, task: task.abort_handle(), exits, exit };
        let stdin: Box<dyn AsyncWrite + Send + Sync + Unpin> = Box::new(stdin);
        let stdout: Box<dyn AsyncRead + Send + Sync + Unpin> = Box::new(stdout);
        Ok(Child { process: Box::new(process), stdin, stdout, stderr: Box::new(stderr) })
    }

    fn find(&self, program: &OsStr, _: Option<&OsStr>, _: &Path) -> io::Result<PathBuf> {
        let is_known = self.lock().programs.contains_key(&*program.to_string_lossy());
        let missing = || io::Error::other("cannot find binary path");
        is_known.then(|| program.into()).ok_or_else(missing)
    }
}

/// Counts the process as running, until its task has ended.
struct Running {
    processes: SimProcesses,
    id: u32,
    exits: watch::Sender<Option<Exit>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.processes.lock().running -= 1;
        trace::note("machine", &format!("process {} has ended", self.id));
    }
}

struct SimProcess {
    id: u32,
    task: AbortHandle,
    exits: watch::Sender<Option<Exit>>,
    exit: watch::Receiver<Option<Exit>>,
}

#[async_trait]
impl Process for SimProcess {
    fn id(&self) -> Option<u32> {
        self.exit.borrow().is_none().then_some(self.id)
    }

    async fn exited(&mut self) {
        let _ = self.exit.wait_for(Option::is_some).await;
    }

    fn exit(&mut self) -> Option<Exit> {
        *self.exit.borrow()
    }

    fn signal(&mut self, signal: Signal) {
        let number = if signal == Signal::Kill { 9 } else { 15 };
        self.exits.send_if_modified(|exit| {
            let runs = exit.is_none();
            exit.get_or_insert(Exit::Signal(number));
            runs
        });
        self.task.abort();
    }
}

impl Drop for SimProcess {
    fn drop(&mut self) {
        self.signal(Signal::Kill);
    }
}
