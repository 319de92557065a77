//! The way in for integration tests, benchmarks and fuzz targets: what they name of the crate,
//! under the paths that it has inside. Nothing here is meant for other use.

pub mod app {
    pub use crate::app::App;
}

pub mod audit {
    pub use crate::audit::Audit;

    pub mod digest {
        pub use crate::audit::digest::value_digest;
    }

    pub mod keys {
        pub use crate::audit::keys::Keys;
    }

    pub mod verify {
        pub use crate::audit::verify::{Report, TrustAnchors, verify};
    }
}

pub mod config {
    pub use crate::config::{Config, Limits, SCHEMA, Settings};
}

pub mod domain {
    pub mod caller {
        pub use crate::domain::caller::Caller;
    }

    pub mod content {
        pub use crate::domain::content::check_result;
    }

    pub mod cursor {
        pub use crate::domain::cursor::{CacheScope, Place};
    }

    pub mod document {
        pub use crate::domain::document::Document;
    }

    pub mod fault {
        pub use crate::domain::fault::{Fault, RequestFault, TransportFault};
    }

    pub mod json {
        pub use crate::domain::json::{Json, JsonError};
    }

    pub mod jsonrpc {
        pub use crate::domain::jsonrpc::Frame;
    }

    pub mod line_decoder {
        pub use crate::domain::line_decoder::{Decoder, Line};
    }

    pub mod mcp_name {
        pub use crate::domain::mcp_name::{decode, encode};
    }

    pub mod merge {
        pub use crate::domain::merge::{Source, merge};
    }

    pub mod method {
        pub use crate::domain::method::Method;
    }

    pub mod name {
        pub use crate::domain::name::{Naming, Prefix, UpstreamId};
    }

    pub mod prompt {
        pub use crate::domain::prompt::Prompt;
    }

    pub mod request_state {
        pub use crate::domain::request_state::RequestState;
    }

    pub mod revision {
        pub use crate::domain::revision::Revision;
    }

    pub mod rights {
        pub use crate::domain::rights::{Everything, PromptRef, Rights};
    }

    pub mod server_request {
        pub use crate::domain::server_request::{
            ClientCapabilities, ELICIT, Presentation, ROOTS, SAMPLE, ServerRequest,
        };
    }

    pub mod sse_decoder {
        pub use crate::domain::sse_decoder::Decoder;
    }

    pub mod translate {
        pub use crate::domain::translate::write_messages;
    }

    pub mod unix_time {
        pub use crate::domain::unix_time::UnixSeconds;
    }
}

pub mod downstream {
    pub use crate::downstream::Streams;
}

pub mod platform {
    pub use crate::platform::{Clock, Entropy, Platform};

    pub mod disk {
        pub use crate::platform::disk::{
            Disk, FileKind, Links, Metadata, OpenFile, OpenOptions, Readers, Watch,
        };
    }

    pub mod network {
        pub use crate::platform::network::{
            Acceptor, Connect, ConnectError, Connecting, Dialling, Network, Socket, Stream,
        };
    }

    pub mod processes {
        pub use crate::platform::processes::{Child, Command, Exit, Process, Processes, Signal};
    }

    pub mod threads {
        pub use crate::platform::threads::{Parking, Threads};
    }
}

pub mod policy {
    pub use crate::policy::{Authorized, Gate};
}

pub mod router {
    pub use crate::router::{Router, RouterDeps, UpstreamDeps};

    pub mod reply {
        pub use crate::router::reply::{ListReply, Origin, PromptReply, Reply};
    }

    pub mod segment {
        pub use crate::router::segment::SegmentWriter;
    }

    pub mod view {
        pub use crate::router::view::{Page, View};
    }

    pub mod view_cache {
        pub use crate::router::view_cache::ListKind;
    }
}

pub mod seal {
    pub use crate::seal::{AuditKey, Kind, SealKeys, Sealer, digest_text};

    pub mod provider {
        pub use crate::seal::provider::tls;
    }

    pub mod jws {
        pub use crate::seal::jws::install;
    }
}

pub mod session {
    pub use crate::session::{
        CallOutcome, CallPermit, CallPermits, Dispatch, Refusal, RequestContext, Sessions,
        SharedState, TransportContext,
    };

    pub mod dialect {
        pub use crate::session::dialect::{Dialect, Identity, ResultForm};
    }

    pub mod headers {
        pub use crate::session::headers::{Field, Headers};
    }
}

pub mod telemetry {
    pub use crate::telemetry::Telemetry;
}

pub mod upstream {
    pub use crate::upstream::Upstream;
    pub use crate::upstream::call::exchange::Exchange;
    pub use crate::upstream::call::request::UpstreamRequest;

    pub mod call {
        pub mod correlator {
            pub use crate::upstream::call::correlator::NotificationSinks;
        }
    }

    pub mod connection {
        pub mod connect {
            pub use crate::upstream::connection::connect::Connector;
        }
    }
}
