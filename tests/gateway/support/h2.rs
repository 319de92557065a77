//! A client that knows HTTP/2 just well enough to misuse it (RFC 9113).

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::PATIENCE;

pub struct Http2 {
    stream: TcpStream,
}

#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const ACK: u8 = 1;

/// Of the settings: how much of an answer may come before more is asked for.
pub const INITIAL_WINDOW_SIZE: u16 = 4;

impl Http2 {
    /// Opens a connection with these settings.
    pub async fn open(addr: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let payload: Vec<u8> = settings
            .iter()
            .flat_map(|(key, value)| [&key.to_be_bytes()[..], &value.to_be_bytes()[..]].concat())
            .collect();
        let mut client = Self { stream };
        client.send(SETTINGS, 0, 0, &payload).await.unwrap();
        client
    }

    pub async fn send(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: &[u8],
    ) -> std::io::Result<()> {
        self.stream.write_all(&frame(kind, flags, stream, payload)).await
    }

    /// Sends these bytes, whatever they are; whether they were taken.
    pub async fn pour(&mut self, bytes: &[u8]) -> bool {
        let written = timeout(PATIENCE, self.stream.write_all(bytes)).await;
        written.expect("it reads or closes").is_ok()
    }

    /// A POST of a JSON body with these headers.
    pub async fn post(&mut self, stream: u32, headers: &[(&str, &str)], body: &[u8]) {
        self.send(HEADERS, END_HEADERS, stream, &head("POST", headers)).await.unwrap();
        self.send(DATA, END_STREAM, stream, body).await.unwrap();
    }

    /// The next frame; nothing once the connection is closed.
    pub async fn next(&mut self) -> Option<Frame> {
        let reading = async {
            let mut head = [0; 9];
            self.stream.read_exact(&mut head).await.ok()?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            self.stream.read_exact(&mut payload).await.ok()?;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            Some(Frame { kind: head[3], flags: head[4], stream, payload })
        };
        timeout(PATIENCE, reading).await.expect("a frame, or the end")
    }

    /// Reads to the end of the connection; what it was closed with.
    pub async fn closed(&mut self) -> Option<u32> {
        let mut why = None;
        while let Some(frame) = self.next().await {
            if frame.kind == GOAWAY {
                why = frame
                    .payload
                    .get(4..8)
                    .map(|code| u32::from_be_bytes(code.try_into().unwrap()));
            }
        }
        why
    }
}

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A block of headers, none of which is remembered (RFC 7541, section 6.2.2).
pub fn head(method: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let own =
        [(":method", method), (":scheme", "http"), (":path", "/mcp"), (":authority", "localhost")];
    let mut block = Vec::new();
    for (name, value) in own.iter().chain(headers) {
        block.push(0);
        for text in [name.to_ascii_lowercase().as_str(), value] {
            assert!(text.len() < 127, "short enough for one byte");
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    block
}
