//! The frame of every page: title, navigation and the signed-in visitor.

use askama::Template;

use super::asset::{ICON, SCRIPT, STYLE};
use super::filters;
use super::text::Html;
use crate::sign_in::{Role, Visitor};

/// The parts of the console, in the order of the navigation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ConsoleSection {
    Overview,
    Prompts,
    Upstreams,
    Access,
    Approvals,
    Usage,
    Audit,
    Configuration,
    Connect,
}

impl ConsoleSection {
    pub(crate) const ALL: [Self; 9] = [
        Self::Overview,
        Self::Prompts,
        Self::Upstreams,
        Self::Access,
        Self::Approvals,
        Self::Usage,
        Self::Audit,
        Self::Configuration,
        Self::Connect,
    ];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Prompts => "Prompts",
            Self::Upstreams => "Upstreams",
            Self::Access => "Access",
            Self::Approvals => "Approvals",
            Self::Usage => "Usage",
            Self::Audit => "Audit",
            Self::Configuration => "Configuration",
            Self::Connect => "Connect",
        }
    }

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Overview => "/",
            Self::Prompts => "/prompts",
            Self::Upstreams => "/upstreams",
            Self::Access => "/access",
            Self::Approvals => "/approvals",
            Self::Usage => "/usage",
            Self::Audit => "/audit",
            Self::Configuration => "/configuration",
            Self::Connect => "/connect",
        }
    }
}

/// A whole page of the console.
#[derive(Template)]
#[template(path = "frame.html")]
pub(crate) struct ConsoleFrame<'a> {
    pub title: &'a str,
    /// The name of the gateway (`server.name`).
    pub gateway: &'a str,
    /// `None` on pages that are no part of the navigation.
    pub section: Option<ConsoleSection>,
    /// `None` before the sign-in.
    pub visitor: Option<&'a Visitor>,
    /// The token of the form that signs out; empty where there is no session.
    pub csrf: &'a str,
    pub main: Html,
}

impl ConsoleFrame<'_> {
    fn is_here(&self, section: &ConsoleSection) -> bool {
        self.section == Some(*section)
    }

    /// The section to link above the page title, where that is not the section itself.
    fn parent(&self) -> Option<ConsoleSection> {
        self.section.filter(|section| section.label() != self.title)
    }

    fn style(&self) -> &'static str {
        &STYLE.path
    }

    fn script(&self) -> &'static str {
        &SCRIPT.path
    }

    fn icon(&self) -> &'static str {
        &ICON.path
    }

    fn role(visitor: &Visitor) -> &'static str {
        match visitor.role {
            Role::Viewer => "viewer",
            Role::Tester => "tester",
            Role::Approver => "approver",
        }
    }
}

/// The form in which people sign in.
#[derive(Template)]
#[template(path = "login.html")]
pub(crate) struct LoginPage<'a> {
    /// The page that they wanted.
    pub to: &'a str,
    pub message: Option<&'a str>,
    pub has_token: bool,
    pub has_oidc: bool,
}

/// Why there is no page.
#[derive(Template)]
#[template(path = "error.html")]
pub(crate) struct ErrorPage<'a> {
    pub message: &'a str,
}

/// The page after a sign-in at a provider, which moves on by itself.
#[derive(Template)]
#[template(path = "signed_in.html")]
pub(crate) struct SignedInPage<'a> {
    pub to: &'a str,
}
