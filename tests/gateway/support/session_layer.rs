//! The session layer and everything behind it, without sockets or credentials.

use std::path::Path;
use std::sync::Arc;

use audit::Audit;
use base::seal::{SealKeys, Sealer};
use calls::{Router, RouterDeps, UpstreamDeps};
use config::Config;
use domain::calls::caller::Caller;
use domain::calls::rights::{Everything, Rights};
use domain::fault::Fault;
use domain::time::unix_time::UnixSeconds;
use front::session::headers::{Field, Headers};
use front::session::{
    CallOutcome, CallPermit, CallPermits, Dispatch, MessageRefusal, RequestContext, RunningCall,
    SessionSharedState, Sessions, TransportContext,
};
use policy::Gate;
use serde_json::{Value, json};
use shutdown::Supervisor;
use telemetry::Telemetry;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use upstream::call::result_memory::Unbounded;

use super::client::{MODERN, modern};

/// The session layer without a transport, so that tests can choose the caller.
pub struct SessionLayer {
    pub sessions: Arc<Sessions>,
}

/// A call permit that is never exhausted.
struct UnlimitedPermit;

impl CallPermit for UnlimitedPermit {
    fn suspend(&self) -> bool {
        true
    }
}

pub const NOW: UnixSeconds = UnixSeconds(1_000_000);

impl SessionLayer {
    pub fn start(toml: &str) -> Self {
        Self::with_rights(toml, Arc::new(Everything))
    }

    /// With these rights; records what it does if the configuration says so.
    pub fn with_rights(toml: &str, rights: Arc<dyn Rights>) -> Self {
        let toml = match toml.contains("[audit]\n") {
            true => toml.to_owned(),
            false => format!("{toml}[audit]\npath = \"\"\n"),
        };
        let config = Config::parse("test", &toml, Path::new("."), &[]).unwrap();
        let audit = Audit::open(config.audit.as_ref()).unwrap();
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let supervisor = Supervisor::new(tasks.clone(), stop.clone());
        let sealer = Arc::new(Sealer::new(&SealKeys::ephemeral()));
        let telemetry = Telemetry::silent();
        let gate = Arc::new(Gate::new(&config, rights, audit.clone(), telemetry.clone()));
        let means = RouterDeps { gate: gate.clone(), sealer: sealer.clone(), is_replica: false };
        let ground = UpstreamDeps::new(audit, telemetry, supervisor);
        let router = Arc::new(Router::start(&config, means, ground));
        let lasting = SessionSharedState::new(tasks, stop.clone(), stop);
        let sessions = Sessions::new(&config, gate, router, sealer, Arc::new(lasting));
        Self { sessions: Arc::new(sessions) }
    }

    pub async fn read(
        &self,
        caller: &str,
        headers: &Headers<'_>,
        body: &Value,
    ) -> Result<Dispatch, MessageRefusal> {
        let caller = Caller::new(caller);
        let envelope = RequestContext {
            transport: TransportContext::Http(headers),
            subject_token: None,
            caller: &caller,
            endpoint: "/mcp",
            address: None,
            now: NOW,
            assumed_dialect: self.sessions.legacy().dialect_of(headers, "/mcp", Some(&caller)),
            streams: true,
        };
        self.sessions.read(body.to_string().as_bytes(), &envelope).await
    }

    /// The result of a modern call.
    pub async fn call(&self, caller: &str, method: &str, params: Value) -> Result<Value, Fault> {
        let mut body = modern(1, method, params.clone()).0;
        let capabilities = json!({"elicitation": {}});
        body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
        let headers = Headers {
            version: Field::Once(MODERN),
            method: Field::Once(method),
            name: params["name"].as_str().map_or(Field::Absent, Field::Once),
            ..Headers::default()
        };
        let turn = self.read(caller, &headers, &body).await.map_err(|refusal| refusal.fault)?;
        let Dispatch::Call(pending) = turn else { panic!("a call") };
        let permits = CallPermits { call: Arc::new(UnlimitedPermit), budget: Arc::new(Unbounded) };
        match RunningCall::new(self.sessions.clone(), pending, permits, None, NOW).await {
            CallOutcome::Result(result) => Ok(serde_json::from_str(&result.into_text()).unwrap()),
            CallOutcome::Fault(fault) => Err(fault),
            CallOutcome::Cancelled => panic!("nobody cancels"),
        }
    }
}
