//! The rollbacks of rollouts in the store, so that a replica that joins or comes back knows them
//! before it serves a version. There is one sealed text for each pair of versions that was ever
//! rolled back; restarts by people stay, too, because a replica that was away may not know them.

use std::collections::HashMap;
use std::sync::Arc;

use redis::{Script, Value, cmd};
use tokio::sync::Notify;

use super::scripts::keep_rollback;
use super::store::{RedisBackend, StoreUnavailable};
use base::seal::hex::hex;
use base::seal::{Sealer, TokenKind};

/// The rollbacks and restarts of all replicas.
pub struct SharedRollbacks {
    store: Arc<RedisBackend>,
    keep: Script,
    /// Notified with each connection to the store.
    connected: Notify,
}

/// The context that the seal of a text is bound to.
const BOUND_TO: &str = "rollback";

impl SharedRollbacks {
    pub(super) fn new(store: Arc<RedisBackend>) -> Self {
        Self { store, keep: keep_rollback(), connected: Notify::new() }
    }

    /// Resolves once for each connection to the store: changes may have been missed before. Cancel
    /// safe.
    pub async fn connected(&self) {
        self.connected.notified().await;
    }

    pub(super) fn note_connected(&self) {
        self.connected.notify_one();
    }

    /// Reads the texts of all rollouts. Texts that cannot be opened are left out: a replica with
    /// another seal key wrote them.
    ///
    /// # Errors
    /// [`StoreUnavailable`].
    pub async fn read(&self, sealer: &Sealer) -> Result<Vec<Vec<u8>>, StoreUnavailable> {
        let key = self.key();
        let reading =
            async |mut connection| cmd("HGETALL").arg(key).query_async(&mut connection).await;
        let kept: HashMap<String, String> = self.store.run(reading).await?;
        let open =
            |text: String| sealer.open(TokenKind::Replica, BOUND_TO, text.split_once(' ')?.1);
        Ok(kept.into_values().filter_map(open).collect())
    }

    /// Writes the text of a rollout that was changed at a time (in seconds), unless the store has a
    /// newer one.
    ///
    /// # Errors
    /// [`StoreUnavailable`]: the text may have been written.
    pub async fn write(
        &self,
        sealer: &Sealer,
        rollout: &str,
        changed: u64,
        text: &[u8],
    ) -> Result<(), StoreUnavailable> {
        let mut keep = self.keep.key(self.key());
        keep.arg(hex(&sealer.blind(rollout))).arg(changed);
        keep.arg(sealer.seal(TokenKind::Replica, BOUND_TO, text));
        let writing =
            async |mut connection| keep.invoke_async::<Value>(&mut connection).await.map(drop);
        self.store.run(writing).await
    }

    fn key(&self) -> String {
        self.store.key("rollbacks")
    }
}
