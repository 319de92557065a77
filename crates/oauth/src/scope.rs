//! Scopes: texts that are separated by spaces (RFC 6749, section 3.3).

use super::client::Refusal;
use domain::fault::{TokenFault, excerpt};

/// Returns the scopes of both, each once, in order.
pub fn union(known: &str, needed: &str) -> String {
    let mut all: Vec<&str> = known.split_whitespace().collect();
    for scope in needed.split_whitespace() {
        if !all.contains(&scope) {
            all.push(scope);
        }
    }
    all.join(" ")
}

/// Whether the granted scopes have all that are needed.
pub fn covers(granted: &str, needed: &str) -> bool {
    let granted: Vec<&str> = granted.split_whitespace().collect();
    needed.split_whitespace().all(|scope| granted.contains(&scope))
}

/// Longest scope that is requested, in bytes: an upstream that names a new scope each time must not
/// make the scope grow without bound.
const MAX_SCOPE: usize = 4096;

/// Returns the known scopes and the needed scopes together.
///
/// # Errors
/// [`TokenFault::ScopeRefused`]: all scopes are known already, or they are longer than 4 KiB.
pub fn wider(known: Option<&str>, needed: &str) -> Result<String, Refusal> {
    let all = union(known.unwrap_or_default(), needed);
    if all == known.unwrap_or_default() {
        let needed = excerpt(needed);
        let detail = format!("the upstream needs the scope {needed:?}, which was requested");
        return Err(Refusal::new(TokenFault::ScopeRefused, detail));
    }
    if all.len() > MAX_SCOPE {
        let detail = "the upstream needs more scopes than fit into 4 KiB";
        return Err(Refusal::new(TokenFault::ScopeRefused, detail));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_that_are_needed_are_added_to_those_known() {
        assert_eq!(union("a b", "b c"), "a b c");
        assert_eq!(union("", "x"), "x");
        assert!(covers("b a", "a b") && covers("a", "") && !covers("a", "a b") && !covers("", "a"));
        assert_eq!(union("a", "a"), "a");
        assert_eq!(wider(Some("a"), "b a").unwrap(), "a b");
        assert_eq!(wider(None, "b").unwrap(), "b");
        let fits = "x".repeat(MAX_SCOPE - 2);
        let long = "x".repeat(MAX_SCOPE - 1);
        assert_eq!(wider(Some("a"), &fits).unwrap().len(), MAX_SCOPE);
        assert_eq!(wider(Some("a"), &long).unwrap_err().fault, TokenFault::ScopeRefused);
        assert_eq!(wider(Some("a b"), "b").unwrap_err().fault, TokenFault::ScopeRefused);
    }
}
