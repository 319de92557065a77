//! How commands reach a running gateway: by a given URL, by the record of the running gateway, or
//! by its configuration file.

use http::Uri;

use super::args::{AdminApi, ConfigFile};
use super::failure::Failure;
use super::running::Running;
use config::Addresses;

/// The addresses of a gateway on this machine.
pub(crate) struct Reach {
    pub addresses: Addresses,
    running: Option<Running>,
}

impl Reach {
    /// Reads the needed keys, and reports on standard error where one of them has a mistake.
    pub(crate) fn find(file: &ConfigFile) -> Self {
        let addresses = Addresses::load(&file.config);
        let running = Running::find(&file.config);
        if let Some(mistakes) = addresses.mistakes.as_ref().filter(|_| running.is_none()) {
            eprintln!("{mistakes}\nThe default address is used instead.");
        }
        Self { addresses, running }
    }

    /// Returns the URL of the admin API of the gateway that runs with the file, where one does.
    pub(crate) fn running_admin(file: &ConfigFile) -> Option<String> {
        Running::find(&file.config)?.admin
    }

    /// Returns the URL of the main endpoint. If `url` is given without a path, the path of the
    /// configuration file is added.
    pub(crate) fn endpoint(&self, url: Option<&str>) -> Result<String, Failure> {
        match url {
            Some(url) => self.with_path(url),
            None => Ok(match &self.running {
                Some(running) => running.endpoint.clone(),
                None => self.addresses.endpoint.clone(),
            }),
        }
    }

    fn with_path(&self, url: &str) -> Result<String, Failure> {
        let uri: Uri = url.parse().map_err(|_| not_a_url(url))?;
        if uri.scheme().is_none() || uri.host().is_none() {
            return Err(not_a_url(url));
        }
        Ok(match uri.path() {
            "" | "/" => format!("{}{}", url.trim_end_matches('/'), self.addresses.path),
            _ => url.to_owned(),
        })
    }

    /// Returns the URL of the admin API that a command was given.
    pub(crate) fn admin_of(admin: &AdminApi) -> Result<String, Failure> {
        Self::find(&admin.file).admin(admin.url.as_deref())
    }

    /// Returns the URL of the admin API.
    pub(crate) fn admin(&self, url: Option<&str>) -> Result<String, Failure> {
        if let Some(url) = url {
            return Ok(url.trim_end_matches('/').to_owned());
        }
        let admin = match &self.running {
            Some(running) => &running.admin,
            None => &self.addresses.admin,
        };
        let disabled = "the admin API is disabled: admin.listen is \"\" in the configuration";
        admin.clone().ok_or_else(|| Failure::new(disabled))
    }
}

fn not_a_url(url: &str) -> Failure {
    Failure::usage(format!("{url} is not a URL such as http://127.0.0.1:8080/mcp"))
}
