//! JSON Web Tokens of an identity provider (RFC 9068, RFC 8725), validated against its published
//! keys and nothing that a token carries.

mod keys;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header};
use quick_cache::sync::Cache;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use base::seal;
use base::seal::claims::GroupsClaim;
use config::Jwt;
use domain::calls::caller::{Caller, Proof, TokenProof, is_id, is_reserved};
use domain::fault::{TransportFault, excerpt};
use domain::time::unix_time::UnixSeconds;
use keys::{IssuerKeys, NoKey};
use net::origin::is_same_uri;

/// Validates the tokens of one issuer.
pub(crate) struct Tokens {
    jwt: Jwt,
    keys: Arc<IssuerKeys>,
    taken: TakenIds,
    /// Validated tokens, by digest and audience.
    good: Cache<[u8; 32], Good>,
    /// Whether a token without groups was logged.
    was_groupless: AtomicBool,
}

/// The ids of callers with other credentials: no token may claim them.
pub struct TakenIds {
    ids: HashSet<String>,
    /// Whether any certificate subject is a caller.
    takes_subjects: bool,
}

#[derive(Clone)]
struct Good {
    caller: Caller,
    expires: UnixSeconds,
    /// The fetch of the keys that validated the token; after another fetch it is validated again.
    generation: Instant,
}

/// Longest token that is parsed, in bytes.
const MAX_TOKEN: usize = 16 << 10;

/// Cached tokens.
const GOOD: usize = 10_000;

/// Groups and scopes of one token; a token with more is refused.
const MAX_WORDS: usize = 256;

impl Tokens {
    pub(crate) fn new(auth: &config::Auth, jwt: &Jwt) -> Self {
        seal::jws::install();
        Self {
            keys: Arc::new(IssuerKeys::new(jwt)),
            jwt: jwt.clone(),
            taken: TakenIds::new(auth),
            good: Cache::new(GOOD),
            was_groupless: AtomicBool::new(false),
        }
    }

    /// The validator of another configuration, which keeps the fetched keys if the issuer is the
    /// same.
    pub(crate) fn renew(&self, auth: &config::Auth, jwt: &Jwt) -> Self {
        let renewed = Self::new(auth, jwt);
        if self.jwt == *jwt {
            return Self { keys: self.keys.clone(), ..renewed };
        }
        if (&self.jwt.issuer, &self.jwt.jwks_url) == (&jwt.issuer, &jwt.jwks_url) {
            return Self { keys: Arc::new(self.keys.renew(jwt)), ..renewed };
        }
        renewed
    }

    /// Whether a credential has the shape of a token: three parts, the first of which starts like
    /// an encoded JSON object.
    pub(crate) fn is_token(credential: &str) -> bool {
        credential.starts_with("ey") && credential.bytes().filter(|&b| b == b'.').count() == 2
    }

    /// Keeps the issuer's keys fresh, until `stop`.
    pub(crate) async fn keep(self: Arc<Self>, stop: CancellationToken) {
        self.keys.keep(stop).await;
    }

    /// The caller of a valid token for `audience`. `now` is the wall-clock time.
    pub(crate) async fn check(
        &self,
        token: &str,
        audience: &str,
        now: UnixSeconds,
    ) -> Result<Caller, TransportFault> {
        let digest = seal::digest([token, audience]);
        let generation = self.keys.generation();
        if let Some(good) = self.good.get(&digest)
            && Some(good.generation) == generation
            && now < good.expires
        {
            return Ok(good.caller);
        }
        let (caller, generation) = self.check_anew(token, audience).await?;
        if let Some(expires) = caller.expires() {
            self.good.insert(digest, Good { caller: caller.clone(), expires, generation });
        }
        Ok(caller)
    }

    /// Validates a token that is not cached; returns its caller, and the fetch of the keys used.
    async fn check_anew(
        &self,
        token: &str,
        audience: &str,
    ) -> Result<(Caller, Instant), TransportFault> {
        if token.len() > MAX_TOKEN {
            return Err(bad("the token is longer than 16 KiB"));
        }
        // Nothing in the header is trusted yet; URLs in it are ignored.
        let header = decode_header(token).map_err(|_| bad("the token is no JWT"))?;
        if header.crit.is_some() {
            return Err(bad("the token asks for extensions that are not known here"));
        }
        if !self.is_accepted_type(header.typ.as_deref().unwrap_or_default()) {
            return Err(bad("the token has a type (typ) that is not accepted (auth.jwt.typ)"));
        }
        if !self.jwt.algorithms.contains(&header.alg) {
            return Err(bad("the token is signed with an algorithm that is not allowed"));
        }
        let key = self.keys.find(header.kid.as_deref(), header.alg).await;
        let (key, generation) = key.map_err(|missing| match missing {
            NoKey::Unknown => bad("the token is signed with a key that its issuer does not have"),
            NoKey::Unavailable => TransportFault::AuthUnavailable,
        })?;
        let mut validation = Validation::new(header.alg);
        // The issuer and the audience are compared below, as URIs.
        validation.validate_aud = false;
        validation.leeway = self.jwt.leeway.as_secs();
        validation.validate_nbf = true;
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        let claims =
            decode::<Value>(token, &key, &validation).map_err(|error| why(error.kind()))?;
        self.check_parties(&claims.claims, audience)?;
        Ok((self.caller(&claims.claims)?, generation))
    }

    /// Checks that validated claims are of the issuer, and for the endpoint or another accepted
    /// audience.
    fn check_parties(&self, claims: &Value, audience: &str) -> Result<(), TransportFault> {
        let Jwt { issuer, audience: further, .. } = &self.jwt;
        let named = claims.get("iss").cloned().unwrap_or_default();
        // A list that contains the issuer does not count.
        if !named.as_str().is_some_and(|named| is_same_uri(named, issuer)) {
            let named = excerpt(&named.to_string());
            let why = format!("the token is of another issuer: {named}, not {issuer:?}");
            return Err(TransportFault::Unauthorized { why: why.into() });
        }
        let audiences = claims.get("aud").cloned().unwrap_or_default();
        let is_accepted = |given: &str| {
            let mut accepted = std::iter::once(audience).chain(further.iter().map(String::as_str));
            accepted.any(|accepted| is_same_uri(given, accepted))
        };
        let is_for_us = match &audiences {
            Value::Array(all) => all.iter().filter_map(Value::as_str).any(is_accepted),
            one => one.as_str().is_some_and(is_accepted),
        };
        if is_for_us {
            return Ok(());
        }
        let given = excerpt(&audiences.to_string());
        let or = if further.is_empty() { "" } else { " or one of auth.jwt.audience" };
        let why = format!("the token was made for another audience: {given}, not {audience:?}{or}");
        Err(TransportFault::Unauthorized { why: why.into() })
    }

    /// Whether `auth.jwt.typ` has this type. Types are media types: without regard to case, and
    /// with or without `application/` (RFC 7515, section 4.1.9; RFC 9068, section 4).
    fn is_accepted_type(&self, given: &str) -> bool {
        let short = |full: &str| {
            let full = full.to_ascii_lowercase();
            full.strip_prefix("application/").unwrap_or(&full).to_owned()
        };
        self.jwt.typ.iter().any(|accepted| short(accepted) == short(given))
    }

    /// The caller named by validated claims.
    fn caller(&self, claims: &Value) -> Result<Caller, TransportFault> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        if claims.get("cnf").is_some() {
            return Err(bad(
                "the token is bound to a key (cnf), of which no proof is checked here",
            ));
        }
        let subject = text("sub").filter(|sub| is_id(sub));
        let subject = subject.ok_or(bad("`sub` is not 1 to 128 visible characters"))?;
        if self.taken.contain(subject) {
            return Err(bad("`sub` is the name of a caller who is known in another way"));
        }
        let groups = self.groups(claims)?;
        let scopes = words(claims.get("scope").or_else(|| claims.get("scp")));
        let scopes = scopes.ok_or(bad("the claim `scope` is not at most 256 texts"))?;
        let proof = TokenProof {
            issuer: self.jwt.issuer.clone(),
            subject: subject.to_owned(),
            client: text("client_id").or_else(|| text("azp")).map(str::to_owned),
            id_hash: text("jti").map(|id| seal::sha256_text(id.as_bytes())),
            context_hash: Some(context_hash(claims)),
            expires: UnixSeconds(expires(claims).saturating_add(self.jwt.leeway.as_secs())),
        };
        let missing = self.jwt.scopes.iter().any(|needed| !scopes.contains(needed));
        if missing {
            return Err(TransportFault::InsufficientScope);
        }
        let caller = Caller::in_groups(subject, &groups).with_scopes(scopes);
        Ok(caller.proved_by(Proof::Token(Box::new(proof))))
    }

    /// Reads the groups. A token without the claim is of no group; the first such token is logged.
    fn groups(&self, claims: &Value) -> Result<Vec<String>, TransportFault> {
        let claim = &self.jwt.groups_claim;
        let read = GroupsClaim::read(claims, claim);
        match read {
            GroupsClaim::Groups(groups) if groups.len() <= MAX_WORDS => return Ok(groups),
            GroupsClaim::Groups(_) | GroupsClaim::Malformed => {
                let why = format!(
                    "the claim {claim:?} (auth.jwt.groups_claim) is not at most {MAX_WORDS} texts"
                );
                return Err(TransportFault::Unauthorized { why: why.into() });
            }
            GroupsClaim::Absent | GroupsClaim::Elsewhere => {}
        }
        if !self.was_groupless.swap(true, Ordering::Relaxed) {
            let is_elsewhere = read == GroupsClaim::Elsewhere;
            warn!(claim, is_elsewhere, "a token lacks the groups of its caller");
        }
        Ok(Vec::new())
    }
}

fn context_hash(claims: &Value) -> String {
    let claim = |name: &str| claims.get(name).unwrap_or(&Value::Null);
    seal::sha256_text(format!("{}\n{}", claim("aud"), claim("acr")).as_bytes())
}

impl TakenIds {
    pub fn new(auth: &config::Auth) -> Self {
        let named = auth.named().map(|caller| caller.id.clone());
        Self {
            ids: named.chain([auth.stdio.id.clone()]).collect(),
            takes_subjects: auth.takes_certificates && auth.certificates.is_empty(),
        }
    }

    pub fn contain(&self, subject: &str) -> bool {
        self.ids.contains(subject)
            || is_reserved(subject)
            || (self.takes_subjects && subject.contains('='))
    }
}

fn bad(why: &'static str) -> TransportFault {
    TransportFault::Unauthorized { why: why.into() }
}

fn why(kind: &ErrorKind) -> TransportFault {
    bad(match kind {
        ErrorKind::ExpiredSignature => "the token has expired",
        ErrorKind::ImmatureSignature => "the token is not valid yet",
        ErrorKind::InvalidSignature => "the signature of the token is wrong",
        ErrorKind::MissingRequiredClaim(_) => "the token lacks one of iss, aud, sub and exp",
        _ => "the token is no JWT that can be checked",
    })
}

/// The texts of a claim: a list, or one text, split at blanks. An absent claim has no texts.
fn words(claim: Option<&Value>) -> Option<Vec<String>> {
    let words: Vec<String> = match claim {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => text.split(' ').map(str::to_owned).collect(),
        Some(Value::Array(items)) => {
            items.iter().map(|item| item.as_str().map(str::to_owned)).collect::<Option<_>>()?
        }
        Some(_) => return None,
    };
    let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
    (words.len() <= MAX_WORDS).then_some(words)
}

/// `exp` in seconds since the Unix epoch; validated to be a number.
fn expires(claims: &Value) -> u64 {
    let exp = claims.get("exp");
    let whole = exp.and_then(Value::as_u64);
    whole.or_else(|| exp.and_then(Value::as_f64).map(|exp| exp as u64)).unwrap_or_default()
}
