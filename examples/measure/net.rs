//! Processes, connections and servers of the measurement.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
/// Kernel ticks per second in /proc/PID/stat (fixed in Linux's user interface).
const TICKS_PER_S: f64 = 100.0;
const ANSWER: &str = concat!(
    r#"{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"#,
    r#""message":{"role":"assistant","content":"42"},"finish_reason":"stop"}],"#,
    r#""usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}"#
);

/// A process that ends with its owner.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    /// User and system time used so far.
    pub(crate) fn cpu_s(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        // After the command's name, which may contain anything: field 3 and on.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |n: usize| fields.get(n - 3).and_then(|field| field.parse::<f64>().ok());
        let (user, system) = ticks(14).zip(ticks(15)).context("/proc/PID/stat is not as it should be")?;
        Ok((user + system) / TICKS_PER_S)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One chat completion.
pub(crate) struct Answered {
    pub(crate) took: Duration,
    /// From arrival at the router to departure, as the router tells; an endpoint tells nothing.
    pub(crate) window_s: Option<f64>,
}

/// A kept-alive client connection.
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { sender })
    }

    pub(crate) async fn chat(&mut self, model: &str, text: &str) -> anyhow::Result<Answered> {
        let body = chat_body(model, text).into();
        let began = Instant::now();
        let response = self.send(Method::POST, "/v1/chat/completions", body).await?;
        let took = began.elapsed();
        if response.status() != StatusCode::OK {
            bail!("{}: {}", response.status(), String::from_utf8_lossy(response.body()));
        }
        let window_ms = response.headers().get("x-cema-window-ms").map(|value| value.to_str()).transpose()?;
        let window_s = window_ms.map(|ms| ms.parse::<f64>()).transpose()?.map(|ms| ms / 1e3);
        Ok(Answered { took, window_s })
    }

    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<Response<Bytes>> {
        self.sender.ready().await?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "measure")
            .header("content-type", "application/json");
        let response = self.sender.send_request(request.body(Full::new(body))?).await?;
        let (head, body) = response.into_parts();
        Ok(Response::from_parts(head, body.collect().await?.to_bytes()))
    }
}

pub(crate) fn chat_body(model: &str, text: &str) -> String {
    serde_json::json!({"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 48})
        .to_string()
}

/// An address nobody listens on at the moment.
pub(crate) fn free_address() -> std::io::Result<SocketAddr> {
    std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

pub(crate) async fn wait_for(address: SocketAddr, path: &str) -> anyhow::Result<()> {
    for _ in 0..300 {
        if let Ok(mut connection) = Connection::open(address).await
            && let Ok(response) = connection.send(Method::GET, path, Bytes::new()).await
            && response.status() == StatusCode::OK
        {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bail!("nothing answers {path} at {address} after 30 s")
}

/// An endpoint without a model: answers whatever it is asked at once.
pub(crate) async fn serve_at_once(listener: TcpListener) {
    serve(listener, |request: Request<Incoming>| async move {
        request.into_body().collect().await?;
        let answer = Response::builder().header("content-type", "application/json");
        Ok(answer.body(Full::new(Bytes::from_static(ANSWER.as_bytes())))?)
    })
    .await;
}

/// Buffers requests and answers and passes them on.
pub(crate) async fn pass_through(listen: SocketAddr, upstream: SocketAddr) -> anyhow::Result<()> {
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let listener = TcpListener::bind(listen).await?;
    serve(listener, move |request: Request<Incoming>| {
        let client = client.clone();
        async move {
            let (mut head, body) = request.into_parts();
            let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
            head.uri = format!("http://{upstream}{path}").parse()?;
            let body = body.collect().await?.to_bytes();
            let response = client.request(Request::from_parts(head, Full::new(body))).await?;
            let (head, body) = response.into_parts();
            Ok(Response::from_parts(head, Full::new(body.collect().await?.to_bytes())))
        }
    })
    .await;
    Ok(())
}

async fn serve<F>(listener: TcpListener, answer: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static)
where
    F: Future<Output = anyhow::Result<Response<Full<Bytes>>>> + Send + 'static,
{
    while let Ok((stream, _)) = listener.accept().await {
        let answer = answer.clone();
        tokio::spawn(async move {
            // A client that breaks off ends its connection only.
            if stream.set_nodelay(true).is_ok() {
                let service = service_fn(answer);
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            }
        });
    }
}
