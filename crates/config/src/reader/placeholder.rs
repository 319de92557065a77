//! Placeholders that other programs replace by the value of an environment variable. The
//! configuration does not expand them: a text would mean something else than in the files of those
//! programs.

/// Returns the name of the variable in a text with a placeholder: `${NAME}` anywhere, with an
/// optional default or `env:`, or `$NAME` or `%NAME%` as the whole text.
pub(super) fn placeholder(text: &str) -> Option<&str> {
    let braced = text.split("${").skip(1).find_map(|rest| name(rest.split_once('}')?.0));
    let whole = || {
        let percent = || text.strip_prefix('%')?.strip_suffix('%');
        text.strip_prefix('$').or_else(percent).filter(|name| is_name(name))
    };
    braced.or_else(whole)
}

/// Returns the name in `NAME`, `env:NAME` and `NAME:-default`.
fn name(inner: &str) -> Option<&str> {
    let inner = inner.strip_prefix("env:").unwrap_or(inner);
    let name = inner.split_once(":-").map_or(inner, |(name, _)| name);
    is_name(name).then_some(name)
}

fn is_name(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.chars().all(is_part) && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_variables_are_found_and_other_texts_are_not_meant() {
        for text in [
            "${KEY}",
            "$KEY",
            "%KEY%",
            "Bearer ${KEY}",
            "https://${KEY}/mcp",
            "${env:KEY}",
            "${KEY:-none}",
            "${} ${KEY}",
        ] {
            assert_eq!(placeholder(text), Some("KEY"), "{text}");
        }
        for text in
            ["", "$", "${", "${}", "$1", "a$KEY", "50%", "%20", "$a-b", "${a b}", "{caller}", "KEY"]
        {
            assert_eq!(placeholder(text), None, "{text}");
        }
    }
}
