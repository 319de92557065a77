//! A class of callers that no policy can distinguish. Its decisions are made once for each class of
//! prompts.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use cedar_policy::{
    Authorizer, Context, Decision, Entities, Entity, EntityId, EntityTypeName, EntityUid,
    PolicySet, Request, RestrictedExpression,
};

use crate::prompt_tests::{PromptClass, PromptTests};
use crate::rule::action;
use domain::calls::caller::Caller;
use domain::calls::rights::{Allowed, NO_RULE, PromptRef};
use domain::protocol::method::Method;

/// An access decision, with the policies that decided.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct AccessVerdict {
    pub is_allowed: bool,
    /// Ids of the policies that decided, sorted; empty where no policy matches the request, or it
    /// cannot be evaluated.
    pub reasons: Vec<String>,
}

/// Most rules that a denial names, since each class stores the names of its denials.
const MAX_NAMED: usize = 4;

impl AccessVerdict {
    /// Returns the names of the rules that deny; `None` if the verdict is to allow.
    fn denied_by(&self) -> Option<Arc<str>> {
        if self.is_allowed {
            return None;
        }
        let more = self.reasons.len().saturating_sub(MAX_NAMED);
        let named = self.reasons[..self.reasons.len() - more].join(", ");
        Some(match (named.as_str(), more) {
            ("", _) => NO_RULE.into(),
            (_, 0) => named.into(),
            _ => format!("{named}, and {more} more").into(),
        })
    }
}

/// The rules that deny a call; `None`: it is allowed.
type DeniedBy = Option<Arc<str>>;

/// The rights of a class of callers.
pub(super) struct CallerClass {
    /// The key that its members share.
    pub key: Arc<str>,
    /// The policies that can concern a member.
    policies: PolicySet,
    tests: PromptTests,
    /// One member, as a Cedar entity.
    member: EntityUid,
    entities: Entities,
    types: Arc<Types>,
    decisions: RwLock<HashMap<(Method, PromptClass), DeniedBy>>,
}

/// The entity types of the Cedar schema.
pub(super) struct Types {
    caller: EntityTypeName,
    group: EntityTypeName,
    upstream: EntityTypeName,
    prompt: EntityTypeName,
    action: EntityTypeName,
}

/// Most remembered decisions of one class, of about 100 bytes each: beyond that they are forgotten
/// and made again.
const MAX_DECISIONS: usize = 1_024;

impl CallerClass {
    /// The class of `member`, whom only `policies` can concern; `None` if Cedar does not accept the
    /// caller.
    pub(super) fn new(
        key: &str,
        policies: PolicySet,
        member: &Caller,
        types: Arc<Types>,
    ) -> Option<Self> {
        let id = uid(&types.caller, member.id());
        let scope = |scope: &String| RestrictedExpression::new_string(scope.clone());
        let scopes = RestrictedExpression::new_set(member.scopes().iter().map(scope));
        let groups = member.groups().iter().map(|group| uid(&types.group, group));
        let attributes = HashMap::from([("scopes".to_owned(), scopes)]);
        let entity = Entity::new(id.clone(), attributes, groups.collect()).ok()?;
        Some(Self {
            key: key.into(),
            tests: PromptTests::of(policies.policies()),
            policies,
            member: id,
            entities: Entities::from_entities([entity], None).ok()?,
            types,
            decisions: RwLock::default(),
        })
    }

    /// Whether a member may use a prompt.
    pub(super) fn allows(&self, method: Method, prompt: PromptRef<'_>) -> bool {
        self.denied_by(method, prompt).is_none()
    }

    /// Returns the rules that deny a prompt to a member; `None` if it may use the prompt.
    pub(super) fn denied_by(&self, method: Method, prompt: PromptRef<'_>) -> Option<Arc<str>> {
        self.class_denied_by(method, self.tests.class(prompt), prompt)
    }

    /// Which of several prompts of one upstream a member may use.
    pub(super) fn allowed(
        &self,
        method: Method,
        prompts: &mut dyn Iterator<Item = PromptRef<'_>>,
    ) -> Allowed {
        if !self.tests.tell_prompts_apart() {
            let is_allowed = prompts.next().is_some_and(|prompt| self.allows(method, prompt));
            return if is_allowed { Allowed::All } else { Allowed::None };
        }
        // Neighbours are often of one class.
        let mut last: Option<(PromptClass, bool)> = None;
        let allowed: Vec<bool> = prompts
            .map(|prompt| {
                let class = self.tests.class(prompt);
                if let Some((of, is_allowed)) = &last
                    && *of == class
                {
                    return *is_allowed;
                }
                let is_allowed = self.class_denied_by(method, class.clone(), prompt).is_none();
                last = Some((class, is_allowed));
                is_allowed
            })
            .collect();
        Allowed::of(allowed)
    }

    fn class_denied_by(
        &self,
        method: Method,
        class: PromptClass,
        prompt: PromptRef<'_>,
    ) -> Option<Arc<str>> {
        let key = (method, class);
        let known =
            self.decisions.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(denied_by) = known {
            return denied_by;
        }
        let denied_by = self.decide(method, prompt).denied_by();
        // One such prompt would take as much room in the cache as a whole class of prompts.
        if matches!(key.1, PromptClass::Prompt { .. }) {
            return denied_by;
        }
        let mut decisions = self.decisions.write().unwrap_or_else(PoisonError::into_inner);
        if decisions.len() >= MAX_DECISIONS {
            decisions.clear();
        }
        decisions.insert(key, denied_by.clone());
        denied_by
    }

    /// Evaluates the policies. A request that cannot be evaluated is denied.
    pub(super) fn decide(&self, method: Method, prompt: PromptRef<'_>) -> AccessVerdict {
        self.try_decide(method, prompt).unwrap_or_default()
    }

    fn try_decide(&self, method: Method, prompt: PromptRef<'_>) -> Option<AccessVerdict> {
        let prompt = self.types.prompt(prompt)?;
        let resource = prompt.uid();
        let entities = self.entities.clone().add_entities([prompt], None).ok()?;
        let action = uid(&self.types.action, action(method));
        let context = Context::empty();
        let request = Request::new(self.member.clone(), action, resource, context, None).ok()?;
        let response = Authorizer::new().is_authorized(&request, &self.policies, &entities);
        // Cedar skips a policy with an evaluation error, even a `forbid` policy: deny.
        if response.diagnostics().errors().next().is_some() {
            return None;
        }
        let mut reasons: Vec<_> =
            response.diagnostics().reason().map(ToString::to_string).collect();
        reasons.sort_unstable();
        Some(AccessVerdict { is_allowed: response.decision() == Decision::Allow, reasons })
    }
}

impl Types {
    pub(super) fn new() -> Self {
        let name = |text: &str| -> EntityTypeName { text.parse().expect("a name of the schema") };
        Self {
            caller: name("Caller"),
            group: name("Group"),
            upstream: name("Upstream"),
            prompt: name("Prompt"),
            action: name("Action"),
        }
    }

    fn prompt(&self, prompt: PromptRef<'_>) -> Option<Entity> {
        let PromptRef { upstream, raw_name, state } = prompt;
        let name = RestrictedExpression::new_string(raw_name.to_owned());
        let state = RestrictedExpression::new_string(state.as_str().to_owned());
        // Ids of upstreams contain no slash, so no two prompts share an id.
        let id = format!("{upstream}/{raw_name}");
        let parents = HashSet::from([uid(&self.upstream, upstream)]);
        let attributes = HashMap::from([("name".to_owned(), name), ("state".to_owned(), state)]);
        Entity::new(uid(&self.prompt, &id), attributes, parents).ok()
    }
}

fn uid(kind: &EntityTypeName, id: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(kind.clone(), EntityId::new(id))
}
