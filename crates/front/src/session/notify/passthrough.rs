//! Notifications of the upstream of `[passthrough]`, at the pace of one stream.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use domain::protocol::method::{RESOURCES_LIST_CHANGED, TOOLS_LIST_CHANGED};
use upstream::passthrough_signals::{PassthroughChanges, PassthroughLists};

/// The changes of lists of the upstream of `[passthrough]` that the client of a stream does not
/// know yet.
pub(crate) struct PassthroughNotices {
    changes: watch::Receiver<PassthroughChanges>,
    lists: PassthroughLists,
    /// The changes that the client knows.
    announced: PassthroughChanges,
    /// When another notification may be sent.
    due: Instant,
}

/// Shortest time between two notifications of one stream, so that an upstream cannot flood clients.
const INTERVAL: Duration = Duration::from_secs(1);

impl PassthroughNotices {
    pub(crate) fn new(
        mut changes: watch::Receiver<PassthroughChanges>,
        lists: PassthroughLists,
    ) -> Self {
        let announced = *changes.borrow_and_update();
        Self { changes, lists, announced, due: Instant::now() }
    }

    /// Announces all lists once, for a client that may have missed changes between streams.
    pub(crate) fn resumed(mut self) -> Self {
        let PassthroughChanges { tools, resources } = self.announced;
        self.announced = PassthroughChanges {
            tools: tools.wrapping_sub(1),
            resources: resources.wrapping_sub(1),
        };
        self
    }

    /// The lists whose changes are announced.
    pub(crate) fn lists(&self) -> PassthroughLists {
        self.lists
    }

    /// Waits for a change and returns its method. Cancel safe.
    pub(crate) async fn next(&mut self) -> &'static str {
        loop {
            let now = *self.changes.borrow_and_update();
            let has_tools = self.lists.tools && now.tools != self.announced.tools;
            let has_resources = self.lists.resources && now.resources != self.announced.resources;
            if has_tools || has_resources {
                sleep_until(self.due).await;
                self.due = Instant::now()
                    + if has_tools && has_resources { Duration::ZERO } else { INTERVAL };
                if has_tools {
                    self.announced.tools = now.tools;
                    return TOOLS_LIST_CHANGED;
                }
                self.announced.resources = now.resources;
                return RESOURCES_LIST_CHANGED;
            }
            if self.changes.changed().await.is_err() {
                // The upstream has ended with its configuration.
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn after_an_interruption_each_list_is_announced_once() {
        let (_sender, changes) = watch::channel(PassthroughChanges::default());
        let lists = PassthroughLists { tools: true, resources: true };
        let mut notices = PassthroughNotices::new(changes, lists).resumed();
        let announced = [notices.next().await, notices.next().await];
        assert_eq!(announced, [TOOLS_LIST_CHANGED, RESOURCES_LIST_CHANGED]);
        let more = tokio::time::timeout(Duration::ZERO, notices.next()).await;
        assert!(more.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_changes_is_one_notification_a_second() {
        let (sender, changes) = watch::channel(PassthroughChanges::default());
        let lists = PassthroughLists { tools: true, resources: true };
        let mut notices = PassthroughNotices::new(changes, lists);
        let began = Instant::now();
        let flood = async {
            loop {
                sender.send_modify(|changes| changes.tools += 1);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let announced = async {
            for _ in 0..3 {
                assert_eq!(notices.next().await, TOOLS_LIST_CHANGED);
            }
        };
        tokio::select! {
            () = flood => {}
            () = announced => {}
        }
        assert!(began.elapsed() >= 2 * INTERVAL, "{:?}", began.elapsed());
        sender.send_modify(|changes| changes.resources += 1);
        let next = [notices.next().await, notices.next().await];
        assert!(next.contains(&RESOURCES_LIST_CHANGED), "{next:?}");
    }
}
