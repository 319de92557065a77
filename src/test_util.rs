//! Re-exports for integration tests, benchmarks and fuzz targets, under the paths that the items
//! have inside the crate. They are for no other use.

pub mod app {
    pub use crate::app::App;
}

pub mod downstream {
    pub use crate::downstream::Streams;
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
