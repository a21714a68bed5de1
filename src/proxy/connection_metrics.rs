//! Metrics of a listener's connections.

use prometheus::{IntCounterVec, IntGauge, Opts, Registry};

/// Why the router ended a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CutReason {
    /// A request's head took too long.
    SlowHead,
    /// The client took nothing of its answer.
    WriteIdle,
    /// A request had both `Content-Length` and `Transfer-Encoding`.
    TwoLengths,
    /// The TLS handshake failed or took too long.
    Handshake,
}

impl CutReason {
    const ALL: [Self; 4] = [Self::SlowHead, Self::WriteIdle, Self::TwoLengths, Self::Handshake];

    const fn as_str(self) -> &'static str {
        match self {
            Self::SlowHead => "slow_head",
            Self::WriteIdle => "write_idle",
            Self::TwoLengths => "two_lengths",
            Self::Handshake => "tls_handshake",
        }
    }
}

/// Metrics of one listener's connections. Clones count into the same ones.
#[derive(Debug, Clone)]
pub struct ConnectionMetrics {
    open: IntGauge,
    cut: IntCounterVec,
}

impl ConnectionMetrics {
    /// Metrics of the listener that its labels call `listener`.
    ///
    /// # Errors
    /// When that listener has metrics already.
    pub fn register(registry: &Registry, listener: &'static str) -> prometheus::Result<Self> {
        let of_listener = |name: &str, help: &str| Opts::new(name, help).const_label("listener", listener);
        let open = of_listener("cema_connections", "Open client connections.");
        let cut = of_listener(
            "cema_connections_cut_total",
            "Client connections that the router ended for a fault of theirs, by reason.",
        );
        let (open, cut) = (IntGauge::with_opts(open)?, IntCounterVec::new(cut, &["reason"])?);
        registry.register(Box::new(open.clone()))?;
        registry.register(Box::new(cut.clone()))?;
        for reason in CutReason::ALL {
            cut.with_label_values(&[reason.as_str()]);
        }
        Ok(Self { open, cut })
    }

    /// Counts a connection as open until the guard is dropped.
    pub(super) fn opened(&self) -> OpenConnection {
        self.open.inc();
        OpenConnection(self.open.clone())
    }

    /// Counts a connection that was ended.
    pub(super) fn cut(&self, reason: CutReason) {
        self.cut.with_label_values(&[reason.as_str()]).inc();
    }
}

/// An open connection.
#[derive(Debug)]
pub(super) struct OpenConnection(IntGauge);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}
