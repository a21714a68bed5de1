//! `cema-router agent`: export the power and energy of the node it runs on.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::app::agent::Agent;
use crate::profiler::power::agent::AgentParams;
use crate::telemetry::logging::{self, LogFormat};

/// What the other end needs.
const AFTER_HELP: &str = r#"Example:
  cema-router agent --listen 0.0.0.0:9101

At that node, the router's configuration then has:
  power: {source: {scrape: "http://NODE:9101/metrics"}}"#;

/// Export power and energy of this node for a router elsewhere
///
/// Run it on a node that the router cannot measure itself: a Jetson, a box with an NVIDIA board and no exporter, a CPU
/// server. It reads what is there: NVIDIA boards by NVML, the INA3221 rails of a Jetson (hwmon), the RAPL counters of
/// processors (powercap; only root may read these).
///
/// `/metrics` has cema_agent_power_watts{device,sensor} and cema_agent_energy_joules_total{device,sensor,method}; the
/// method says whether the device counts itself (counter) or its power is summed up (integrated). No sample is part of
/// another: the sum over a node is what is measured of it. `/healthz` answers as long as it runs. SIGTERM or Ctrl-C
/// ends it.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct AgentArgs {
    /// Address to listen on, such as 0.0.0.0:9101. It is in clear and asks for no key: keep it within the site.
    #[arg(long, value_name = "IP:PORT")]
    listen: SocketAddr,
    /// Where the kernel shows hwmon.
    #[arg(long, value_name = "DIR", default_value_os_t = AgentParams::default().hwmon_root)]
    hwmon_root: PathBuf,
    /// Where the kernel shows powercap.
    #[arg(long, value_name = "DIR", default_value_os_t = AgentParams::default().powercap_root)]
    powercap_root: PathBuf,
    /// The NVML library; libnvidia-ml.so.1, wherever the system has it, by default.
    #[arg(long, value_name = "PATH")]
    nvml_library: Option<PathBuf>,
    /// What log lines look like.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    /// What is logged: a level, or levels by module.
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
}

/// Runs the agent.
///
/// # Errors
/// An address in use, a filter that cannot be read.
pub fn run(args: &AgentArgs) -> anyhow::Result<ExitCode> {
    logging::init(args.log_format, Some(&args.log))?;
    let params = AgentParams {
        nvml_library: args.nvml_library.clone(),
        hwmon_root: args.hwmon_root.clone(),
        powercap_root: args.powercap_root.clone(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { Agent::start(args.listen, &params).await?.run().await })?;
    Ok(ExitCode::SUCCESS)
}
