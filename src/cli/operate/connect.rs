//! `promptgate connect`: the entry for this gateway in the configuration of a host.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::cli::shared::args::ConnectArgs;
use crate::cli::shared::failure::Failure;
use crate::cli::shared::output::print;
use crate::cli::shared::reach::Reach;
use admin::hosts::{self, FileEntry, GatewayEndpoint, Host, Plan, with_entry};
use base::platform::disk;
use config::durable_file::{self, Readers};

/// Prints the entry, or writes it into the host's file.
pub(crate) fn run(connect: &ConnectArgs) -> Result<(), Failure> {
    let reach = Reach::find(&connect.file);
    if let Some(mistakes) = &reach.addresses.mistakes {
        // Whether the endpoint needs a key, and its URL, would be guesses.
        return Err(Failure::usage(format!(
            "{mistakes}\nRepair the file first; no entry was made."
        )));
    }
    let mut url = reach.endpoint(connect.url.as_deref())?;
    if let Some(view) = &connect.view {
        check_view(view, connect, &reach)?;
        url = format!("{url}/{view}");
    }
    let gateway = GatewayEndpoint {
        name: &connect.name,
        url: &url,
        is_view: connect.view.is_some() || connect.url.is_some(),
        needs_key: reach.addresses.needs_credential,
        has_tools: false,
        config: fs::canonicalize(&connect.file.config).ok(),
    };
    if connect.host == Host::ClaudeDesktop && !gateway.is_view && gateway.config.is_none() {
        let file = connect.file.config.display();
        return Err(Failure::usage(format!(
            "{file} does not exist, and the host would start a gateway with it; name the file by --config FILE"
        )));
    }
    let plan = hosts::plan(connect.host, &gateway);
    if connect.write {
        let place = plan.place.as_ref();
        let place = place.ok_or_else(|| {
            Failure::usage("this host has no file to write to; run the command instead")
        })?;
        let file = connect.to.clone().or_else(|| place.file.clone());
        let unknown = "the host's file is not known on this system; name it by --to FILE";
        write(&file.ok_or_else(|| Failure::usage(unknown))?, place, &gateway)?;
    } else {
        show(&plan, connect.to.as_deref(), &gateway)?;
    }
    plan.notes.iter().for_each(|note| eprintln!("{note}"));
    Ok(())
}

/// Checks that the configuration file has the view, unless --url names another gateway.
fn check_view(view: &str, connect: &ConnectArgs, reach: &Reach) -> Result<(), Failure> {
    let views = &reach.addresses.views;
    if connect.url.is_some() || views.iter().any(|known| known == view) {
        return Ok(());
    }
    let file = connect.file.config.display();
    let known = if views.is_empty() { "none".to_owned() } else { views.join(", ") };
    Err(Failure::usage(format!("{file} has no view `{view}` (views: {known}); add [views.{view}]")))
}

/// Prints the command and the entry; explanations go to standard error.
fn show(plan: &Plan, to: Option<&Path>, gateway: &GatewayEndpoint<'_>) -> Result<(), Failure> {
    if let Some(command) = &plan.command {
        eprintln!("Run:");
        print(command)?;
    }
    if let Some(place) = &plan.place {
        let alone = with_entry("", place, gateway.name).map_err(Failure::new)?;
        let or = if plan.command.is_some() { "Or, in" } else { "In" };
        match to.or(place.file.as_deref()) {
            Some(file) => eprintln!("{or} {} (`--write` does it):", file.display()),
            None => eprintln!("{or} the configuration of the host:"),
        }
        print(alone.trim_end())?;
    }
    Ok(())
}

/// Writes the entry. The file is backed up next to it, then replaced atomically.
fn write(file: &Path, place: &FileEntry, gateway: &GatewayEndpoint<'_>) -> Result<(), Failure> {
    let failed = |what: &str, error: io::Error| {
        Failure::new(format!("{} cannot be {what}: {error}", file.display()))
    };
    let before = match disk::read_text(file) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed("read", error)),
    };
    let after = with_entry(before.as_deref().unwrap_or_default(), place, gateway.name);
    let after = after
        .map_err(|why| Failure::new(format!("{}: {why}; nothing was written", file.display())))?;
    if before.as_deref() == Some(&after) {
        return print(&format!("{} has this entry already.", file.display()));
    }
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).map_err(|error| failed("written", error))?;
    }
    let backup = before.is_some().then(|| back_up(file)).transpose();
    let backup = backup.map_err(|error| failed("backed up", error))?;
    replace(file, &after).map_err(|error| failed("written", error))?;
    let kept = backup.map(|backup| format!(" The file before is {}.", backup.display()));
    print(&format!(
        "Wrote the entry `{}` to {}.{}",
        gateway.name,
        file.display(),
        kept.unwrap_or_default()
    ))
}

/// Copies a file to the first free name next to it, and returns that name.
fn back_up(file: &Path) -> io::Result<PathBuf> {
    let text = fs::read(file)?;
    let permissions = fs::metadata(file)?.permissions();
    let mut number = 0;
    loop {
        let mut name = file.as_os_str().to_owned();
        name.push(if number == 0 { ".bak".to_owned() } else { format!(".bak.{number}") });
        let backup = PathBuf::from(name);
        match create(&backup, &text, Some(&permissions)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            created => return created.map(|()| backup),
        }
    }
}

/// Replaces the content of a file, or of the file that a link leads to: old or new, never half.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    if !file.exists() {
        // Also for a dangling link, which is not written through.
        return create(file, text.as_bytes(), None);
    }
    durable_file::replace(&file.canonicalize()?, text, Readers::Owner)
}

/// Creates a file that does not exist yet, and waits until the disk has it. Only its owner can read
/// it before it has its permissions.
fn create(path: &Path, text: &[u8], permissions: Option<&fs::Permissions>) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    io::Write::write_all(&mut file, text)?;
    if let Some(permissions) = permissions {
        file.set_permissions(permissions.clone())?;
    }
    file.sync_all()
}
