//! rmcp as a client, from the command line: URL, file of expectations, legacy or modern.

mod checks;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, file, mode] = arguments.as_slice() else {
        panic!("usage: rmcp-client URL expect.json legacy|modern");
    };
    let expect = std::fs::read_to_string(file).expect("the file of expectations");
    let expect = serde_json::from_str(&expect).expect("JSON");
    let client = checks::connect(url, mode).await;
    let done = checks::check(&client, &expect).await;
    client.cancel().await.expect("a farewell");
    println!("ok rmcp-{mode} {done}");
}
