//! The claim of a token with the groups of its subject.

use serde_json::Value;

/// The groups that a token names.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum GroupsClaim {
    Groups(Vec<String>),
    /// The token lacks the claim.
    Absent,
    /// The claim is too long for the token: the provider has it elsewhere (OpenID Connect Core 1.0,
    /// section 5.6.2; `hasgroups` of implicit flows of Entra ID).
    Elsewhere,
    /// The claim is neither a list of texts nor a text.
    Malformed,
}

impl GroupsClaim {
    /// Reads the claim of this name, or at the path `a.b` in objects; names may have dots, too.
    pub fn read(claims: &Value, path: &str) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let groups: Option<Vec<_>> = match find(claims, path) {
            None | Some(Value::Null) => {
                let parts = path.match_indices('.').map(|(at, _)| &path[..at]).chain([path]);
                let is_in = |names: &Value| parts.clone().any(|part| names.get(part).is_some());
                let is_elsewhere = claims.get("_claim_names").is_some_and(is_in)
                    || claims.get("hasgroups").is_some_and(|has| has == true);
                return if is_elsewhere { Self::Elsewhere } else { Self::Absent };
            }
            Some(Value::Array(groups)) => groups.iter().map(text).collect(),
            Some(group) => text(group).map(|group| vec![group]),
        };
        groups.map_or(Self::Malformed, |mut groups| {
            groups.retain(|group| !group.is_empty());
            Self::Groups(groups)
        })
    }
}

fn find<'a>(claims: &'a Value, path: &str) -> Option<&'a Value> {
    let below = |(at, _)| find(claims.get(&path[..at])?, &path[at + 1..]);
    claims.get(path).or_else(|| path.match_indices('.').find_map(below))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn groups_are_found_where_providers_put_them() {
        let claims = json!({
            "groups": ["a", "", "b"], "role": "c", "realm_access": {"roles": ["d"]},
            "resource_access": {"my.client": {"roles": ["e"]}},
            "https://id.example/groups": ["f"], "odd": {"g": true}, "number": [7], "none": null,
        });
        let groups =
            |names: &[&str]| GroupsClaim::Groups(names.iter().map(|n| (*n).into()).collect());
        for (path, expected) in [
            ("groups", groups(&["a", "b"])),
            ("role", groups(&["c"])),
            ("realm_access.roles", groups(&["d"])),
            ("resource_access.my.client.roles", groups(&["e"])),
            ("https://id.example/groups", groups(&["f"])),
            ("odd", GroupsClaim::Malformed),
            ("number", GroupsClaim::Malformed),
            ("realm_access", GroupsClaim::Malformed),
            ("none", GroupsClaim::Absent),
            ("realm_access.groups", GroupsClaim::Absent),
            ("groups.x", GroupsClaim::Absent),
        ] {
            assert_eq!(GroupsClaim::read(&claims, path), expected, "{path}");
        }
        for (claims, path) in [
            (json!({"_claim_names": {"groups": "src1"}}), "groups"),
            (json!({"_claim_names": {"realm_access": "src1"}}), "realm_access.roles"),
            (json!({"hasgroups": true}), "groups"),
        ] {
            assert_eq!(GroupsClaim::read(&claims, path), GroupsClaim::Elsewhere, "{claims}");
        }
    }
}
