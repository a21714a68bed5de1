//! Destinations: the paper's node–model pairs, flattened into one list D (section III-D).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::backlog::Work;
use super::named::named_enum;
use crate::units::{Bytes, BytesPerSec, Joules, Quality, Seconds, Tokens, TokensPerSec, Usd, Watts};

/// Position of a destination in the fleet's list D; the column index of every R × M table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DestinationOrd(pub u32);

impl DestinationOrd {
    /// The position as an index.
    #[must_use]
    pub const fn idx(self) -> usize {
        self.0 as usize
    }
}

/// Position of an endpoint (one HTTP server) in the fleet; several destinations may share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EndpointOrd(pub u32);

impl EndpointOrd {
    /// The position as an index.
    #[must_use]
    pub const fn idx(self) -> usize {
        self.0 as usize
    }
}

/// Unique name of a destination: `node/model`, or `node/endpoint/model` where the endpoint is named.
///
/// Model names may contain slashes themselves.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DestinationId(Arc<str>);

impl DestinationId {
    /// Composes the id from its parts.
    #[must_use]
    pub fn new(node: &str, endpoint: Option<&str>, model: &str) -> Self {
        match endpoint {
            Some(endpoint) => Self(format!("{node}/{endpoint}/{model}").into()),
            None => Self(format!("{node}/{model}").into()),
        }
    }

    /// An id that was composed elsewhere, such as in a problem file.
    #[must_use]
    pub fn from_text(id: &str) -> Self {
        Self(id.into())
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DestinationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

named_enum! {
    /// Where a node stands. Placement constraints and the `cloud_only` and `edge_only` policies use it.
    pub enum NodeClass {
        /// A data-centre GPU.
        Cloud = "cloud",
        /// A box close to its users.
        Edge = "edge",
    }
}

/// What a model can be asked for, as a bit set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Capabilities(u8);

impl Capabilities {
    /// Chat and text completion.
    pub const CHAT: Self = Self(1);
    /// `/v1/embeddings`.
    pub const EMBEDDING: Self = Self(2);
    /// Function calling.
    pub const TOOLS: Self = Self(4);
    /// Image input.
    pub const VISION: Self = Self(8);
    /// Constrained JSON output.
    pub const JSON: Self = Self(16);

    /// Every capability with the name used in configurations.
    pub const NAMED: [(&'static str, Self); 5] = [
        ("chat", Self::CHAT),
        ("embedding", Self::EMBEDDING),
        ("tools", Self::TOOLS),
        ("vision", Self::VISION),
        ("json", Self::JSON),
    ];

    /// The union of both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether everything in `needed` is offered.
    #[must_use]
    pub const fn offers(self, needed: Self) -> bool {
        self.0 & needed.0 == needed.0
    }

    /// What `self` needs and `offered` lacks, by name.
    pub fn missing_from(self, offered: Self) -> impl Iterator<Item = &'static str> {
        Self::NAMED
            .into_iter()
            .filter(move |(_, c)| self.offers(*c) && !offered.offers(*c))
            .map(|(name, _)| name)
    }
}

/// Token prices (Eq. 2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Price {
    /// Per million prompt tokens.
    pub prompt_usd_per_mtok: f64,
    /// Per million completion tokens.
    pub completion_usd_per_mtok: f64,
    /// Per request, whatever its size.
    pub request: Usd,
}

impl Price {
    /// What an exchange of this size costs (C_infer of Eq. 2).
    #[must_use]
    pub fn charge(&self, prompt: Tokens, completion: Tokens) -> Usd {
        let per_mtok = prompt.0 * self.prompt_usd_per_mtok + completion.0 * self.completion_usd_per_mtok;
        Usd(per_mtok / 1e6) + self.request
    }
}

/// Calibrated speed of a destination: the paper's F1 and F_B.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    /// Prompt processing of one request alone on the endpoint.
    pub prefill: TokensPerSec,
    /// Generation of one request alone on the endpoint.
    pub decode: TokensPerSec,
    /// F_B / F_1: how much faster a saturated serving batch is than serial execution; at least 1.
    pub batch_speedup: f64,
    /// Requests the engine truly runs at once (its slots); at least 1.
    pub max_concurrency: u32,
    /// Tokens of any prompt that the engine has in its cache already, such as those of a chat template.
    pub cached_prompt: Tokens,
}

impl Throughput {
    /// s_rd: the time of a request of this size alone on the endpoint.
    #[must_use]
    pub fn service_time(&self, prompt: Tokens, completion: Tokens) -> Seconds {
        self.work(prompt, completion).total()
    }

    /// The work of a request of this size, in time alone on the endpoint.
    #[must_use]
    pub fn work(&self, prompt: Tokens, completion: Tokens) -> Work {
        self.work_beyond(Tokens::ZERO, prompt, completion)
    }

    /// The same where the engine has `prefix` of the prompt in its cache. That begins with what it has of any prompt,
    /// so the larger of both counts.
    #[must_use]
    pub fn work_beyond(&self, prefix: Tokens, prompt: Tokens, completion: Tokens) -> Work {
        let read = (prompt - self.cached_prompt.max(prefix)).max(Tokens::ZERO);
        Work { prefill: read.duration_at(self.prefill), decode: completion.duration_at(self.decode) }
    }

    /// Its slots and how they share the speed.
    #[must_use]
    pub const fn slot_speed(&self) -> SlotSpeed {
        SlotSpeed { slots: self.max_concurrency, batch_speedup: self.batch_speedup }
    }

    /// See [`SlotSpeed::slowdown`].
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        self.slot_speed().slowdown()
    }

    /// See [`SlotSpeed::stretch`].
    #[must_use]
    pub fn stretch(&self, running: u32) -> f64 {
        self.slot_speed().stretch(running)
    }

    /// See [`SlotSpeed::speedup`].
    #[must_use]
    pub fn speedup(&self, running: u32) -> f64 {
        self.slot_speed().speedup(running)
    }
}

/// The slots of a destination and how requests in them share its speed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SlotSpeed {
    /// S_d, requests that run at once; at least 1.
    pub slots: u32,
    /// k_d, how much faster full slots generate together than one request alone; at least 1.
    pub batch_speedup: f64,
}

impl SlotSpeed {
    /// The `a` of `rate(n) = r1 / (1 + a (n − 1))`: how much slower each of n running requests generates per
    /// further one. It follows from the speed-up at full slots, `k = S / (1 + a (S − 1))`; not negative.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        let slots = f64::from(self.slots);
        if slots <= 1.0 { 0.0 } else { ((slots / self.batch_speedup - 1.0) / (slots - 1.0)).max(0.0) }
    }

    /// How much longer a token takes with `running` requests than alone, `1 + a (n − 1)`; at least 1.
    #[must_use]
    pub fn stretch(&self, running: u32) -> f64 {
        1.0 + self.slowdown() * f64::from(running.saturating_sub(1))
    }

    /// Generation of `running` requests together, in multiples of one alone: `n / (1 + a (n − 1))`.
    #[must_use]
    pub fn speedup(&self, running: u32) -> f64 {
        f64::from(running.max(1)) / self.stretch(running)
    }
}

/// How moving bytes to and from an endpoint is charged in joules (Eq. 3, the communication part).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransferEnergy {
    /// A flat figure per megabyte moved either way.
    PerMegabyte(Joules),
    /// Transmit and receive power of the path over the time of the transfer.
    TxRx {
        /// Drawn while sending the request.
        tx: Watts,
        /// Drawn while receiving the answer.
        rx: Watts,
    },
}

/// The network path from the router to a node.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Network {
    /// Round-trip time.
    pub rtt: Seconds,
    /// Goodput towards the endpoint.
    pub uplink: BytesPerSec,
    /// Goodput from the endpoint.
    pub downlink: BytesPerSec,
    /// Energy of a transfer.
    pub transfer_energy: TransferEnergy,
    /// Metered transfer charge per gigabyte moved either way (the C_trans of Eq. 2).
    pub usd_per_gb: f64,
}

impl Network {
    /// Time on the wire of one exchange, without the round trip.
    #[must_use]
    pub fn transfer_time(&self, up: Bytes, down: Bytes) -> Seconds {
        up.transfer_time(self.uplink) + down.transfer_time(self.downlink)
    }

    /// Energy of one exchange (the communication part of Eq. 3).
    #[must_use]
    pub fn transfer_energy(&self, up: Bytes, down: Bytes) -> Joules {
        match self.transfer_energy {
            TransferEnergy::PerMegabyte(joules) => Joules(joules.0 * (up.0 + down.0) / 1e6),
            TransferEnergy::TxRx { tx, rx } => {
                tx.over(up.transfer_time(self.uplink)) + rx.over(down.transfer_time(self.downlink))
            }
        }
    }
}

/// Power characteristics of a node.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Power {
    /// Board power at full load.
    pub board: Watts,
    /// Board power with nothing running.
    pub idle: Watts,
    /// Share of `board` drawn while serving, in `(0, 1]`.
    pub utilisation: f64,
}

impl Power {
    /// Power drawn while serving: `board × utilisation`.
    #[must_use]
    pub fn active(&self) -> Watts {
        Watts(self.board.0 * self.utilisation)
    }
}

/// One node–model pair with everything static or calibrated that the evaluator needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Destination {
    /// Unique name.
    pub id: DestinationId,
    /// Name of the machine.
    pub node: Arc<str>,
    /// Where the machine stands.
    pub class: NodeClass,
    /// The HTTP server that hosts the model.
    pub endpoint: EndpointOrd,
    /// The name clients ask for.
    pub model: Arc<str>,
    /// The name the endpoint knows the model by.
    pub upstream_model: Arc<str>,
    /// Prompt plus completion tokens that fit; `None` = not known, so that only the endpoint judges.
    pub context: Option<Tokens>,
    /// What the model can be asked for.
    pub capabilities: Capabilities,
    /// Token prices.
    pub price: Price,
    /// Calibrated speed.
    pub throughput: Throughput,
    /// The path to the node.
    pub network: Network,
    /// Power of the node.
    pub power: Power,
    /// Expected quality where no profile says otherwise.
    pub quality_prior: Quality,
    /// Requests the router may have outstanding here, queued ones included; at least `max_concurrency`.
    pub max_inflight: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_the_endpoint_only_where_it_is_named() {
        assert_eq!(DestinationId::new("edge-1", None, "org/model").as_str(), "edge-1/org/model");
        assert_eq!(DestinationId::new("edge-1", Some("b"), "m").as_str(), "edge-1/b/m");
    }

    #[test]
    fn missing_capabilities_are_named() {
        let needed = Capabilities::CHAT.with(Capabilities::TOOLS).with(Capabilities::VISION);
        let offered = Capabilities::CHAT.with(Capabilities::JSON);
        assert!(!offered.offers(needed));
        assert_eq!(needed.missing_from(offered).collect::<Vec<_>>(), ["tools", "vision"]);
    }

    #[test]
    fn transfer_energy_follows_equation_3() {
        let mut network = Network {
            rtt: Seconds::ZERO,
            uplink: BytesPerSec(1e6),
            downlink: BytesPerSec(2e6),
            transfer_energy: TransferEnergy::TxRx { tx: Watts(3.0), rx: Watts(2.0) },
            usd_per_gb: 0.0,
        };
        // 1 MB up at 1 MB/s and 3 W: 3 J; 4 MB down at 2 MB/s and 2 W: 4 J.
        assert!((network.transfer_energy(Bytes(1e6), Bytes(4e6)).get() - 7.0).abs() < 1e-12);
        network.transfer_energy = TransferEnergy::PerMegabyte(Joules(0.5));
        assert!((network.transfer_energy(Bytes(1e6), Bytes(4e6)).get() - 2.5).abs() < 1e-12);
    }
}
