//! rmcp as a host of skills.
//!
//! usage: client URL EXPECT.json legacy|modern     all that the file expects
//!        client URL SKILL changed                 see `change`

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rmcp::model::{
    CallToolRequestParams, ContentBlock, GetPromptRequestParams, GetSkillRequestParams,
    PaginatedRequestParams, ProtocolVersion, ReadResourceDirectoryRequestParams,
    ReadResourceRequestParams, ResourceContents, Skill, SkillResource, SkillResources,
};
use rmcp::service::{ClientLifecycleMode, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{ClientServiceExt, RoleClient, ServiceExt};
use serde_json::{Value, json};

type Connected = RunningService<RoleClient, ()>;

const METHOD_NOT_FOUND: i32 = -32601;
const INVALID_PARAMS: i32 = -32602;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, given, mode] = arguments.as_slice() else {
        panic!("usage: client URL EXPECT.json legacy|modern, or client URL SKILL changed");
    };
    let client = connect(url, mode).await;
    let done = if mode == "changed" {
        change(&client, given).await
    } else {
        let expect = std::fs::read_to_string(given).expect("the file of expectations");
        check(&client, &serde_json::from_str(&expect).expect("JSON"), mode).await
    };
    println!("ok rmcp {mode}: {done}");
    client.cancel().await.expect("a farewell");
}

async fn connect(url: &str, mode: &str) -> Connected {
    let transport = StreamableHttpClientTransport::from_uri(url);
    if mode == "legacy" {
        return ().serve(transport).await.expect("initialize");
    }
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    let lifecycle = ClientLifecycleMode::Discover { preferred_versions };
    ().serve_with_lifecycle(transport, lifecycle).await.expect("discover")
}

async fn check(client: &Connected, expect: &Value, mode: &str) -> String {
    let skills = match mode {
        "modern" => skills(client, expect).await,
        _ => {
            assert!(!client.peer_info().expect("a peer").capabilities.supports_skills());
            let error = client.list_skills(None).await.expect_err("no skills in this era");
            assert_eq!(code(&error), METHOD_NOT_FOUND);
            "no skills declared".to_owned()
        }
    };
    let prompts = prompts(client, &expect["prompts"][mode]).await;
    let tools = tools(client, &expect["tools"]).await;
    format!("{skills}, {prompts} prompts, {tools} tool calls")
}

async fn skills(client: &Connected, expect: &Value) -> String {
    let capabilities = &client.peer_info().expect("a peer").capabilities;
    assert!(capabilities.supports_directory_read() && capabilities.resources.is_some());
    let (skills, pages) = list(client).await;
    let expected = expect["skills"].as_object().expect("skills");
    let uris: BTreeSet<_> = skills.iter().map(|skill| &skill.uri).collect();
    assert_eq!(uris, expected.keys().collect(), "{} entries", skills.len());
    assert!(pages >= expect["pages"].as_u64().expect("a number"), "{pages} pages");
    let mut read = 0;
    for skill in &skills {
        skill.validate().expect("a valid entry");
        assert_eq!(get(client, &skill.uri).await.expect("an entry"), *skill);
        let digests: BTreeMap<_, _> = files(skill).iter().map(|f| (&f.uri, &f.digest)).collect();
        assert_eq!(json!(digests), expected[&skill.uri]);
        for file in files(skill) {
            file.verify(&bytes(client, &file.uri).await.expect("a file")).expect("these bytes");
            read += 1;
        }
    }
    for uri in strings(&expect["refused"]) {
        assert_eq!(code(&get(client, uri).await.expect_err(uri)), INVALID_PARAMS);
        assert_eq!(code(&bytes(client, uri).await.expect_err(uri)), INVALID_PARAMS);
    }
    let folders = expect["folders"].as_object().expect("folders");
    for (folder, children) in folders {
        let params = ReadResourceDirectoryRequestParams::new(folder);
        let listed = client.read_resource_directory(params).await.expect("a folder");
        let uris: BTreeSet<_> = listed.resources.iter().map(|child| child.uri.as_str()).collect();
        assert_eq!(uris, strings(children).collect(), "{folder}");
    }
    format!("{} skills on {pages} pages, {read} files, {} folders", skills.len(), folders.len())
}

async fn list(client: &Connected) -> (Vec<Skill>, u64) {
    let (mut skills, mut pages, mut cursor) = (Vec::new(), 0, None);
    loop {
        let params = PaginatedRequestParams::default().with_cursor(cursor);
        let page = client.list_skills(Some(params)).await.expect("a page");
        skills.extend(page.skills);
        (pages, cursor) = (pages + 1, page.next_cursor);
        if cursor.is_none() {
            return (skills, pages);
        }
    }
}

async fn get(client: &Connected, uri: &str) -> Result<Skill, ServiceError> {
    Ok(client.get_skill(GetSkillRequestParams::new(uri)).await?.skill)
}

async fn bytes(client: &Connected, uri: &str) -> Result<Vec<u8>, ServiceError> {
    let mut result = client.read_resource(ReadResourceRequestParams::new(uri)).await?;
    assert_eq!(result.contents.len(), 1);
    Ok(match result.contents.remove(0) {
        ResourceContents::TextResourceContents { text, .. } => text.into_bytes(),
        ResourceContents::BlobResourceContents { blob, .. } => {
            BASE64_STANDARD.decode(blob).expect("base64")
        }
        other => panic!("unknown contents: {other:?}"),
    })
}

/// Gets each prompt, and reads what it links to. Returns their number.
async fn prompts(client: &Connected, expect: &Value) -> usize {
    let prompts = expect.as_array().expect("prompts");
    for prompt in prompts {
        let name = prompt["name"].as_str().expect("a name");
        let params = GetPromptRequestParams::new(name);
        let params = match prompt["arguments"].as_object() {
            Some(arguments) => params.with_arguments(arguments.clone()),
            None => params,
        };
        let result = client.get_prompt(params).await;
        if let Some(expected) = prompt["code"].as_i64() {
            assert_eq!(i64::from(code(&result.expect_err(name))), expected);
            continue;
        }
        let result = result.expect(name);
        contains(&json!(result), prompt);
        for message in result.messages {
            if let ContentBlock::ResourceLink(link) = message.content {
                let bytes = bytes(client, &link.uri).await.expect("a linked file");
                assert_eq!(link.size, Some(bytes.len() as u64), "{}", link.uri);
            }
        }
    }
    prompts.len()
}

/// Calls each tool, and returns the number of calls.
async fn tools(client: &Connected, expect: &Value) -> usize {
    let calls = expect.as_array().expect("calls");
    for call in calls {
        let name = call["name"].as_str().expect("a name").to_owned();
        let arguments = call["arguments"].as_object().expect("arguments").clone();
        let params = CallToolRequestParams::new(name).with_arguments(arguments);
        let result = client.call_tool(params).await.expect("a result");
        assert_eq!(result.is_error.unwrap_or_default(), call["isError"] == true, "{call}");
        contains(&json!(result), call);
    }
    calls.len()
}

fn contains(result: &Value, expect: &Value) {
    let text = result.to_string();
    for part in expect["contains"].as_array().into_iter().flatten() {
        // As it stands within JSON, without the quotation marks.
        let part = part.to_string();
        assert!(text.contains(&part[1..part.len() - 1]), "{part} is not in {text}");
    }
}

/// A file changes at the server while the client holds its entry: "ready" on one side, a line on
/// the other. The file is refused, and then there is another entry, whose file is right.
async fn change(client: &Connected, uri: &str) -> String {
    let held = get(client, uri).await.expect("an entry");
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    let changed = |skill: &Skill| -> SkillResource {
        let file = files(skill).iter().find(|file| file.uri.ends_with("/notes.md"));
        file.expect("the file").clone()
    };
    let file = changed(&held);
    let error = bytes(client, &file.uri).await.expect_err("a file that differs from its entry");
    loop {
        let new = changed(&get(client, uri).await.expect("an entry"));
        if new.digest != file.digest {
            new.verify(&bytes(client, &new.uri).await.expect("a file")).expect("these bytes");
            return format!(
                "{} refused with {}, then served by a new entry",
                file.uri,
                code(&error)
            );
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn files(skill: &Skill) -> &[SkillResource] {
    match &skill.resources {
        SkillResources::Files(files) => files,
        other => panic!("no digests: {other:?}"),
    }
}

fn strings(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().expect("an array").iter().map(|one| one.as_str().expect("text"))
}

fn code(error: &ServiceError) -> i32 {
    match error {
        ServiceError::McpError(error) => error.code.0,
        other => panic!("no error of the protocol: {other}"),
    }
}
