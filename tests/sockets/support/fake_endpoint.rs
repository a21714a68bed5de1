//! A scripted LLM server on raw TCP: records exactly what arrives and plays back exactly what it is told.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::http1::{Framing, Head, Reader};
use super::in_time;

/// One thing a scripted answer does.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Writes and flushes these bytes, nothing around them.
    Write(Bytes),
    /// Waits, on tokio's clock.
    Pause(Duration),
    /// Waits until the test lets one more answer through this gate, by adding a permit.
    Gate(Arc<Semaphore>),
    /// Closes the connection in good order.
    Close,
    /// Resets the connection (RST): unread and unsent bytes are lost.
    Reset,
    /// Waits until the client closes, which [`FakeEndpoint::client_closes`] and
    /// [`FakeEndpoint::answers_cut`] count; then closes as well.
    ///
    /// A script that hangs ends with this step: the server says nothing more and lets the client go first.
    WaitClientClose,
}

/// One request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    /// Connections accepted before the one it came on.
    pub(crate) connection: usize,
    /// Requests that came before it, on any connection.
    pub(crate) ordinal: usize,
    /// Its head.
    pub(crate) head: Head,
    /// Its body, chunks joined.
    pub(crate) body: Bytes,
}

/// What the server has seen so far.
#[derive(Debug, Default)]
struct Seen {
    connections: usize,
    requests: Vec<Recorded>,
    client_closes: usize,
    answers_cut: usize,
}

impl Seen {
    /// What came to be answered by a model, in order: no health probes.
    fn posts(&self) -> Vec<Recorded> {
        self.requests.iter().filter(|request| request.head.method() == "POST").cloned().collect()
    }
}

type Script = dyn Fn(&Recorded) -> Vec<Step> + Send + Sync;

/// The server. Dropping it closes everything.
#[derive(Debug)]
pub(crate) struct FakeEndpoint {
    addr: SocketAddr,
    seen: watch::Receiver<Seen>,
    _tasks: JoinSet<()>,
}

impl FakeEndpoint {
    /// Listens on a free port of 127.0.0.1; `script` says how each request is answered.
    ///
    /// After a script without `Close`, `Reset` or `WaitClientClose` the connection takes another request.
    pub(crate) async fn start(script: impl Fn(&Recorded) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (sender, seen) = watch::channel(Seen::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::new(script), sender));
        Self { addr, seen, _tasks: tasks }
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its URL, as a configuration has it.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Requests so far.
    pub(crate) fn requests(&self) -> Vec<Recorded> {
        self.seen.borrow().requests.clone()
    }

    /// Connections accepted so far.
    pub(crate) fn connections(&self) -> usize {
        self.seen.borrow().connections
    }

    /// Connections that the client closed before their answer was over or while they waited for a request.
    pub(crate) fn client_closes(&self) -> usize {
        self.seen.borrow().client_closes
    }

    /// `POST` requests so far.
    pub(crate) fn posts(&self) -> Vec<Recorded> {
        self.seen.borrow().posts()
    }

    /// Answers that the client cut short by closing the connection.
    pub(crate) fn answers_cut(&self) -> usize {
        self.seen.borrow().answers_cut
    }

    /// Waits until `n` `POST` requests have arrived whole and returns them.
    pub(crate) async fn posts_reach(&self, n: usize) -> Vec<Recorded> {
        self.reach(|seen| seen.posts().len() >= n).await;
        self.posts()
    }

    /// Waits until the client has cut `n` answers short.
    pub(crate) async fn answers_cut_reach(&self, n: usize) {
        self.reach(|seen| seen.answers_cut >= n).await;
    }

    /// Waits until `n` connections have been accepted: a client may be done with one before that.
    pub(crate) async fn connections_reach(&self, n: usize) {
        self.reach(|seen| seen.connections >= n).await;
    }

    /// Waits until `n` requests have arrived whole and returns them.
    pub(crate) async fn requests_reach(&self, n: usize) -> Vec<Recorded> {
        self.reach(|seen| seen.requests.len() >= n).await;
        self.requests()
    }

    /// Waits until the client has closed `n` connections.
    pub(crate) async fn client_closes_reach(&self, n: usize) {
        self.reach(|seen| seen.client_closes >= n).await;
    }

    fn reach(&self, until: impl Fn(&Seen) -> bool) -> impl Future<Output = ()> {
        let mut seen = self.seen.clone();
        in_time("the endpoint to see what it should", async move {
            seen.wait_for(until).await.unwrap();
        })
    }
}

async fn accept(listener: TcpListener, script: Arc<Script>, seen: watch::Sender<Seen>) {
    let mut connections = JoinSet::new();
    let seen = Arc::new(seen);
    for connection in 0.. {
        let (stream, _) = listener.accept().await.unwrap();
        seen.send_modify(|seen| seen.connections += 1);
        let (script, seen) = (Arc::clone(&script), Arc::clone(&seen));
        connections.spawn(async move {
            // An error is the client's close or reset, also in the middle of a request.
            if serve(stream, connection, &*script, &seen).await.is_err() {
                seen.send_modify(|seen| seen.client_closes += 1);
            }
        });
    }
}

/// Serves one connection; an error means that the client ended it.
async fn serve(
    stream: TcpStream,
    connection: usize,
    script: &Script,
    seen: &watch::Sender<Seen>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (read, mut write) = stream.into_split();
    let mut reader = Reader::new(read);
    loop {
        let Some(head) = reader.head().await? else { return Err(io::ErrorKind::UnexpectedEof.into()) };
        let body = read_body(&mut reader, &mut write, &head).await?;
        let ordinal = seen.borrow().requests.len();
        let request = Recorded { connection, ordinal, head, body: body.into() };
        let steps = script(&request);
        seen.send_modify(|seen| seen.requests.push(request));
        match play(steps, &mut reader, &mut write).await {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => {
                seen.send_modify(|seen| seen.answers_cut += 1);
                return Err(error);
            }
        }
    }
}

/// Plays one answer; `false` where the script closed the connection.
async fn play(
    steps: Vec<Step>,
    reader: &mut Reader<OwnedReadHalf>,
    write: &mut OwnedWriteHalf,
) -> io::Result<bool> {
    for step in steps {
        match step {
            Step::Write(bytes) => write.write_all(&bytes).await?,
            Step::Pause(duration) => tokio::time::sleep(duration).await,
            Step::Gate(gate) => gate.acquire().await.unwrap().forget(),
            Step::Close => return Ok(false),
            Step::Reset => {
                write.as_ref().set_zero_linger()?;
                return Ok(false);
            }
            Step::WaitClientClose => {
                while !reader.some().await?.is_empty() {}
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
    Ok(true)
}

async fn read_body(
    reader: &mut Reader<OwnedReadHalf>,
    write: &mut OwnedWriteHalf,
    head: &Head,
) -> io::Result<Vec<u8>> {
    if head.header("expect").is_some() {
        write.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    match head.framing() {
        Framing::Length(len) => reader.exact(len).await,
        Framing::None => Ok(Vec::new()),
        Framing::Chunked => {
            let mut body = Vec::new();
            while let Some(chunk) = reader.chunk().await? {
                body.extend_from_slice(&chunk);
            }
            Ok(body)
        }
    }
}
