//! The part of the wire protocol that a proxy needs: the end of a message, the sender of a `hello`, the name of a
//! command.

use std::io;

use mongodb::bson::Document;
use tokio::io::{AsyncRead, AsyncReadExt};

const OP_QUERY: i32 = 2004;
const OP_MSG: i32 = 2013;
const HEADER: usize = 16;
/// Larger than any message a server accepts.
const LARGEST: usize = 64 << 20;
const CHUNK: usize = 16 << 10;

/// One message, whole, with its header.
pub(super) struct Message(Vec<u8>);

impl Message {
    /// Reads one. What was read is lost if this is dropped half-way, so a connection is done for
    /// then.
    pub(super) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let length = from.read_i32_le().await?;
        let size = usize::try_from(length).ok().filter(|size| (HEADER..=LARGEST).contains(size));
        let size = size.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a MongoDB message"))?;
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.resize(size, 0);
        from.read_exact(&mut bytes[4..]).await?;
        Ok(Self(bytes))
    }

    /// Reads what is there, of a connection whose messages are not told apart.
    pub(super) async fn read_chunk(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let mut bytes = vec![0; CHUNK];
        let length = from.read(&mut bytes).await?;
        bytes.truncate(length);
        if length == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(Self(bytes)) }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The id its reply refers to.
    pub(super) fn id(&self) -> Option<i32> {
        self.number(4)
    }

    /// The id of the message it replies to.
    pub(super) fn reply_to(&self) -> Option<i32> {
        self.number(8)
    }

    /// The name of the command it asks for. Compressed messages have none here; clients in tests do
    /// not compress.
    pub(super) fn command(&self) -> Option<String> {
        self.body()?.keys().next().cloned()
    }

    /// The document that carries the command.
    pub(super) fn body(&self) -> Option<Document> {
        let at = self.body_at()?;
        Document::from_reader(self.0.get(at..at + self.length(at)?)?).ok()
    }

    /// Puts another document in the place of that. False where the message has none, or a checksum.
    pub(super) fn replace_body(&mut self, body: &Document) -> bool {
        let checked = self.number(HEADER).is_none_or(|flags| flags & 1 == 1);
        let Some((at, length)) = self.body_at().and_then(|at| Some((at, self.length(at)?))) else { return false };
        let mut bytes = Vec::new();
        if checked || body.to_writer(&mut bytes).is_err() {
            return false;
        }
        self.0.splice(at..at + length, bytes);
        let length = i32::try_from(self.0.len()).expect("a message is below 64 MiB");
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        true
    }

    fn body_at(&self) -> Option<usize> {
        Some(match self.number(12)? {
            OP_QUERY => {
                // Flags, the collection's name with its terminator, how many to skip and to return.
                let name = HEADER + 4;
                name + self.0.get(name..)?.iter().position(|byte| *byte == 0)? + 1 + 8
            }
            OP_MSG => self.body_section()?,
            _ => return None,
        })
    }

    /// Where the document of the section of kind 0 begins; sections of kind 1, document sequences,
    /// may precede it.
    fn body_section(&self) -> Option<usize> {
        let mut at = HEADER + 4;
        while *self.0.get(at)? == 1 {
            at += 1 + self.length(at + 1)?;
        }
        Some(at + 1)
    }

    fn length(&self, at: usize) -> Option<usize> {
        usize::try_from(self.number(at)?).ok()
    }

    fn number(&self, at: usize) -> Option<i32> {
        Some(i32::from_le_bytes(self.0.get(at..at + 4)?.try_into().ok()?))
    }
}
