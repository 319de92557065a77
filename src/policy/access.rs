//! Access decisions by Cedar policies: whether a caller may use a prompt, and which policies decided.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cedar_policy::{
    Authorizer, Context, Decision, Entities, Entity, EntityId, EntityTypeName, EntityUid,
    PolicySet, Request, RestrictedExpression,
};
use quick_cache::sync::Cache;

use crate::config::{self, action};
use crate::domain::caller::Caller;
use crate::domain::method::Method;
use crate::domain::rights::Rights;

/// The compiled policies, and a cache of callers as Cedar entities.
pub(crate) struct Access {
    policies: PolicySet,
    /// Whether decisions may differ between callers with the same groups and scopes.
    names_callers: bool,
    authorizer: Authorizer,
    types: Types,
    /// Entities of the recent callers, by [`key_of`].
    callers: Cache<String, Arc<Known>>,
}

/// A caller as a Cedar entity.
struct Known {
    uid: EntityUid,
    entities: Entities,
}

/// The entity types of the Cedar schema.
struct Types {
    caller: EntityTypeName,
    group: EntityTypeName,
    upstream: EntityTypeName,
    prompt: EntityTypeName,
    action: EntityTypeName,
}

/// An access decision, with the policies that decided.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Verdict {
    pub is_allowed: bool,
    /// Ids of the policies that decided; empty where no policy matches the request, or it cannot
    /// be evaluated.
    pub reasons: Vec<String>,
}

/// Most cached callers: an uncached caller costs only microseconds.
const CALLERS: usize = 1024;

impl Access {
    /// Returns the access decisions of a configuration, with an empty cache.
    pub(crate) fn new(access: &config::Access) -> Self {
        Self {
            policies: access.policies.clone(),
            names_callers: access.names_callers,
            authorizer: Authorizer::new(),
            types: Types::new(),
            callers: Cache::new(CALLERS),
        }
    }

    /// Returns the access decision for a request, with the policies that decided. A request that cannot be
    /// evaluated is denied.
    pub(crate) fn decide(
        &self,
        caller: &Caller,
        method: Method,
        upstream: &str,
        raw_name: &str,
    ) -> Verdict {
        self.try_decide(caller, method, upstream, raw_name)
            .unwrap_or(Verdict { is_allowed: false, reasons: Vec::new() })
    }

    fn try_decide(
        &self,
        caller: &Caller,
        method: Method,
        upstream: &str,
        raw_name: &str,
    ) -> Option<Verdict> {
        let known = self.known(caller)?;
        let prompt = self.prompt(upstream, raw_name)?;
        let resource = prompt.uid();
        let entities = known.entities.clone().add_entities([prompt], None).ok()?;
        let action = uid(&self.types.action, action(method));
        let request =
            Request::new(known.uid.clone(), action, resource, Context::empty(), None).ok()?;
        let response = self.authorizer.is_authorized(&request, &self.policies, &entities);
        // Cedar skips a policy with an evaluation error, even a `forbid` policy: deny.
        if response.diagnostics().errors().next().is_some() {
            return None;
        }
        let reasons = response.diagnostics().reason().map(ToString::to_string).collect();
        Some(Verdict { is_allowed: response.decision() == Decision::Allow, reasons })
    }

    fn known(&self, caller: &Caller) -> Option<Arc<Known>> {
        let key = key_of(caller, true);
        let make = || {
            let uid_ = uid(&self.types.caller, caller.id());
            let scope = |scope: &String| RestrictedExpression::new_string(scope.clone());
            let scopes = RestrictedExpression::new_set(caller.scopes().iter().map(scope));
            let groups = caller.groups().iter().map(|group| uid(&self.types.group, group));
            let attributes = HashMap::from([("scopes".to_owned(), scopes)]);
            let entity = Entity::new(uid_.clone(), attributes, groups.collect()).map_err(drop)?;
            let entities = Entities::from_entities([entity], None).map_err(drop)?;
            Ok::<_, ()>(Arc::new(Known { uid: uid_, entities }))
        };
        self.callers.get_or_insert_with(&key, make).ok()
    }

    fn prompt(&self, upstream: &str, raw_name: &str) -> Option<Entity> {
        let name = RestrictedExpression::new_string(raw_name.to_owned());
        // Ids of upstreams contain no slash, so no two prompts share an id.
        let id = format!("{upstream}/{raw_name}");
        let parents = HashSet::from([uid(&self.types.upstream, upstream)]);
        let attributes = HashMap::from([("name".to_owned(), name)]);
        Entity::new(uid(&self.types.prompt, &id), attributes, parents).ok()
    }
}

impl Rights for Access {
    fn entitlement(&self, caller: &Caller) -> Option<String> {
        Some(key_of(caller, self.names_callers))
    }

    fn allows(&self, caller: &Caller, method: Method, upstream: &str, raw_name: &str) -> bool {
        self.decide(caller, method, upstream, raw_name).is_allowed
    }
}

impl Types {
    fn new() -> Self {
        let name = |text: &str| -> EntityTypeName { text.parse().expect("a name of the schema") };
        Self {
            caller: name("Caller"),
            group: name("Group"),
            upstream: name("Upstream"),
            prompt: name("Prompt"),
            action: name("Action"),
        }
    }
}

fn uid(kind: &EntityTypeName, id: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(kind.clone(), EntityId::new(id))
}

/// Returns the properties of a caller as a key: its groups and scopes; its id only if `by_id` is set or
/// the caller is anonymous.
fn key_of(caller: &Caller, by_id: bool) -> String {
    let id = if by_id || caller.is_anonymous() { caller.id() } else { "" };
    format!("{id:?} {:?} {:?}", caller.groups(), caller.scopes())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    const UPSTREAMS: &str = "[upstreams.crm]\ntransport = \"http\"\nurl = \"http://127.0.0.1:1/\"\n\
        [upstreams.git]\ntransport = \"http\"\nurl = \"http://127.0.0.1:2/\"\n";

    fn access(rules: &str) -> Access {
        let hash = format!("sha256:{}", "0".repeat(64));
        let key = format!("[[auth.api_keys]]\nid = \"ci\"\nhash = \"{hash}\"\n");
        let toml = format!("{UPSTREAMS}{key}{rules}");
        let config =
            Config::parse("g", &toml, Path::new(""), &[]).unwrap_or_else(|e| panic!("{e}"));
        Access::new(&config.access.unwrap())
    }

    fn caller(id: &str, group: &str) -> Caller {
        Caller::in_groups(id, &[group.to_owned()])
    }

    #[test]
    fn p2_nothing_is_allowed_that_no_rule_allows() {
        let access = access(
            "[[access.rules]]\nallow = [\"get\"]\ngroups = [\"sales\"]\nupstreams = [\"crm\"]\n",
        );
        let sales = caller("a", "sales");
        assert!(access.allows(&sales, Method::Get, "crm", "x"));
        assert!(!access.allows(&sales, Method::List, "crm", "x"));
        assert!(!access.allows(&sales, Method::Get, "git", "x"));
        assert!(!access.allows(&caller("a", "other"), Method::Get, "crm", "x"));
        assert!(!access.allows(&Caller::anonymous(), Method::Get, "crm", "x"));
    }

    #[test]
    fn a_rule_without_callers_is_for_everyone_who_is_known_and_denials_win() {
        let access = access(
            "[[access.rules]]\nallow = [\"list\", \"get\"]\n\
             [[access.rules]]\ndeny = [\"get\"]\nprompts = [\"secret*\", \"*\\\"quoted\\\"*\"]\n\
             [[access.rules]]\nallow = [\"complete\"]\ncallers = [\"ci\"]\nprompts = [\"a*b\"]\n",
        );
        let ci = caller("ci", "x");
        assert!(access.allows(&ci, Method::Get, "crm", "open"));
        assert!(!access.allows(&Caller::anonymous(), Method::Get, "crm", "open"));
        for denied in ["secret", "secrets of state", "a \"quoted\" name"] {
            let verdict = access.decide(&ci, Method::Get, "crm", denied);
            assert_eq!(
                verdict,
                Verdict { is_allowed: false, reasons: vec!["access.rules.2".into()] }
            );
        }
        assert!(access.allows(&ci, Method::List, "crm", "secret"));
        assert!(access.allows(&ci, Method::Complete, "git", "a to b"));
        assert!(!access.allows(&caller("other", "x"), Method::Complete, "git", "a to b"));
        assert_ne!(access.entitlement(&ci), access.entitlement(&caller("other", "x")));
    }

    #[test]
    fn callers_with_the_same_groups_share_what_they_see_unless_a_rule_names_callers() {
        let access = access("[[access.rules]]\nallow = [\"list\"]\ngroups = [\"x\"]\n");
        assert_eq!(access.entitlement(&caller("a", "x")), access.entitlement(&caller("b", "x")));
        assert_ne!(access.entitlement(&caller("a", "x")), access.entitlement(&caller("a", "y")));
        let nobody = access.entitlement(&Caller::anonymous());
        assert_ne!(nobody, access.entitlement(&Caller::new("somebody")));
    }
}
