//! Runs the rmcp server by itself and prints where it listens.

mod server;

#[tokio::main]
async fn main() {
    println!("listening: {}", server::spawn().await);
    std::future::pending::<()>().await;
}
