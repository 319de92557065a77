//! Scopes: texts that are separated by spaces (RFC 6749, section 3.3).

/// Returns the scopes of both, each once, in order.
pub(crate) fn union(known: &str, needed: &str) -> String {
    let mut all: Vec<&str> = known.split_whitespace().collect();
    for scope in needed.split_whitespace() {
        if !all.contains(&scope) {
            all.push(scope);
        }
    }
    all.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_that_are_needed_are_added_to_those_known() {
        assert_eq!(union("a b", "b c"), "a b c");
        assert_eq!(union("", "x"), "x");
        assert_eq!(union("a", "a"), "a");
    }
}
