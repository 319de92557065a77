//! How hosts connect: one host at a time, for an endpoint that has what it takes.

use super::{Browser, OPEN_ADMIN};
use crate::support::gateway::api_key;
use crate::support::{Gateway, Upstream};

#[tokio::test]
async fn a_host_is_a_tab_with_its_files_below_the_home_of_its_user() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let key = "[auth]\nrequired = true\n".to_owned() + &api_key("ci", "1");
    let gateway = Gateway::start(&(OPEN_ADMIN.to_owned() + &key + &upstream.table("up"))).await;
    let mut browser = Browser::new(&gateway.admin());
    let page = browser.page("/connect").await;
    assert!(page.contains("<h2>Claude Code</h2>") && page.matches("<h2>").count() == 1, "{page}");
    assert!(page.contains("data-copy=\"claude mcp add "), "{page}");
    assert!(!page.contains("Endpoints"), "there is one: {page}");
    let goose = browser.page("/connect?host=goose").await;
    assert!(goose.contains("<code>~/.config/goose/config.yaml</code> (Linux, macOS)"), "{goose}");
    let home = std::env::home_dir().unwrap().display().to_string();
    for host in ["claude-code", "claude-desktop", "codex", "zed", "goose", "no-such", "%3Cb%3E"] {
        let page = browser.page(&format!("/connect?host={host}")).await;
        assert!(!page.contains(&home) && !page.contains("<b>"), "{host}: {page}");
    }
    let cursor = browser.page("/connect?host=cursor").await;
    assert!(
        cursor.contains("href=\"cursor://anysphere.cursor-deeplink/mcp/install?name="),
        "{cursor}"
    );
    assert!(cursor.contains("${env:PROMPTGATE_API_KEY}"), "{cursor}");
    let code = browser.page("/connect?host=vscode").await;
    assert!(code.contains("href=\"vscode:mcp/install?%7B"), "{code}");
}

#[tokio::test]
async fn a_host_that_takes_tools_only_is_led_to_the_view_where_prompts_are_tools() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = OPEN_ADMIN.to_owned() + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    let page = Browser::new(&gateway.admin()).page("/connect?host=codex").await;
    assert!(page.contains("Codex takes tools only") && page.contains("[views.tools]"), "{page}");

    let views = "[views.other]\n[views.models]\nexpose = [\"tools\"]\n";
    let gateway = Gateway::start(&(toml + views)).await;
    let mut browser = Browser::new(&gateway.admin());
    let page = browser.page("/connect?host=codex").await;
    assert!(
        page.contains("In the view <a href=\"/connect?host=codex&#38;view=models\">"),
        "{page}"
    );
    let page = browser.page("/connect").await;
    assert!(page.contains("href=\"/connect?host=codex&#38;view=models\">Codex</a>"), "{page}");
    assert!(page.contains("href=\"/connect?host=zed\">Zed</a>"), "{page}");
    let page = browser.page("/connect?host=codex&view=models").await;
    assert!(!page.contains("takes tools only") && page.contains("/mcp/models"), "{page}");
    assert!(!page.contains("Codex knows tools only"), "{page}");
    // Back to one that takes prompts, and to its endpoint.
    assert!(page.contains("href=\"/connect?host=zed\">Zed</a>"), "{page}");
}
