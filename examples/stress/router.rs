//! The router as a process.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use http::Method;

use crate::fleet::Fleet;
use crate::net::{Connection, Process, free_address, wait_for};

/// Gauges that are 0 when nothing is under way.
const AT_REST: [&str; 3] = ["cema_inflight", "cema_held_requests", "cema_backlog_seconds"];

/// A running router.
pub(crate) struct Router {
    process: Process,
    pub(crate) address: SocketAddr,
    admin: SocketAddr,
}

impl Router {
    /// Starts one in front of `fleet`; `extra` are further top-level sections of its configuration.
    pub(crate) async fn start(binary: &Path, fleet: &Fleet, extra: &str) -> anyhow::Result<Self> {
        let (address, admin) = (free_address()?, free_address()?);
        let folder = std::env::temp_dir().join(format!("cema-stress-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let mut text = format!(
            "listen: {address}\nadmin_listen: {admin}\nquality: {{store: \"{}\"}}\n{extra}\nnodes:\n",
            folder.join("none").display()
        );
        let (slots, inflight_max) = (fleet.capacity.slots, fleet.capacity.inflight_max);
        for (n, endpoint) in fleet.addresses.iter().enumerate() {
            writeln!(
                text,
                "  - name: node-{n}\n    endpoints:\n      - {{url: \"http://{endpoint}\", kind: vllm, max_inflight: {inflight_max}, \
                 models: [{{name: m, throughput: {{max_concurrency: {slots}}}}}]}}"
            )?;
        }
        let config = folder.join("config.yaml");
        std::fs::write(&config, text)?;
        let mut command = Command::new(binary);
        command.args(["serve", "--log", "error", "--config"]).arg(&config);
        let process = Process(command.spawn().with_context(|| format!("cannot run {}", binary.display()))?);
        let ready = wait_for(address, "/readyz").await;
        std::fs::remove_dir_all(&folder)?;
        ready?;
        Ok(Self { process, address, admin })
    }

    /// Memory that the process has now.
    pub(crate) fn rss_mib(&self) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.0.id()))
            .context("the router has ended")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()).context("no VmRSS in /proc")?;
        Ok(kib.parse::<f64>()? / 1024.0)
    }

    /// What is still in its books after `limit`; it should be at rest long before.
    pub(crate) async fn unrest(&self, limit: Duration) -> anyhow::Result<Vec<String>> {
        let until = Instant::now() + limit;
        loop {
            let left = self.left().await?;
            if left.is_empty() || Instant::now() > until {
                return Ok(left);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn left(&self) -> anyhow::Result<Vec<String>> {
        let mut connection = Connection::open(self.admin).await?;
        let page = connection.send(Method::GET, "/metrics", Bytes::new()).await?;
        let text = String::from_utf8(page.into_body().to_vec())?;
        let mut sums = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').context("a metric without a value")?;
            let name = series.split('{').next().unwrap_or(series);
            *sums.entry(name.to_owned()).or_insert(0.0) += value.parse::<f64>()?;
        }
        let mut left = Vec::new();
        for name in AT_REST {
            let value = sums.get(name).with_context(|| format!("no metric {name}"))?;
            if value.abs() > 1e-6 {
                left.push(format!("{name} is {value} when all is over"));
            }
        }
        Ok(left)
    }
}
