//! One process is terminated, killed or stopped while the load goes on, and returns.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::report::{PhaseReport, Strike};
use super::{Balancer, Load, Replicas};

/// What happens to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing, for comparison.
    Nothing,
    /// SIGTERM; it is started again once it has ended.
    Terminate,
    /// SIGKILL; it is started again after a pause.
    Kill,
    /// SIGSTOP, and SIGCONT after a pause.
    Stop,
}

/// The process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// An API server.
    Server(usize),
    /// A gateway.
    Gateway(usize),
}

/// A fault of one process.
#[derive(Clone, Copy, Debug)]
pub struct Phase {
    /// What happens.
    pub fault: Fault,
    /// To which process.
    pub target: Target,
}

/// How long the parts of a phase take.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// How long a process is stopped.
    pub stopped: Duration,
    /// From the return of the process until the load is measured.
    pub settling: Duration,
    /// How long the load is measured.
    pub measured: Duration,
}

/// How long a killed process stays away.
const KILLED_PAUSE: Duration = Duration::from_secs(1);

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verb = match self.fault {
            Fault::Nothing => return f.write_str("none"),
            Fault::Terminate => "terminate",
            Fault::Kill => "kill",
            Fault::Stop => "stop",
        };
        match self.target {
            Target::Server(index) => write!(f, "{verb} server {index}"),
            Target::Gateway(index) => write!(f, "{verb} gateway {index}"),
        }
    }
}

impl Replicas {
    /// Runs a phase, and reports what the clients have seen meanwhile.
    pub async fn run(
        &mut self,
        phase: Phase,
        load: &Load,
        balancer: &Balancer,
        timing: Timing,
    ) -> Result<PhaseReport, String> {
        load.recorder.take();
        let (events, relists, echoed) = (load.events(), load.relists(), load.echoed());
        let refused = balancer.refused.load(Ordering::Relaxed);
        let strike = self.strike(phase, timing).await?;
        self.until_all_are_trusted().await?;
        sleep(timing.settling).await;
        let before = self.requests().await?;
        sleep(timing.measured).await;
        let after = self.requests().await?;
        let shares = after.iter().zip(before).map(|(after, before)| after.saturating_sub(before)).collect();
        let (operations, ends) = load.recorder.take();
        let mut report = PhaseReport::new(phase, strike, &operations, &ends);
        report.shares = shares;
        report.events = load.events() - events;
        report.relists = load.relists() - relists;
        report.echoes = load.echoed() - echoed;
        report.refused = balancer.refused.load(Ordering::Relaxed) - refused;
        Ok(report)
    }

    /// Makes the fault, and waits until the process has returned.
    async fn strike(&mut self, Phase { fault, target }: Phase, timing: Timing) -> Result<Strike, String> {
        let struck = Instant::now();
        let member = match target {
            Target::Server(index) => &mut self.servers[index],
            Target::Gateway(index) => &mut self.gateways[index],
        };
        let gone = match fault {
            Fault::Nothing => struck,
            Fault::Terminate => {
                member.signal(Signal::TERM)?;
                member.until_ended().await?;
                Instant::now()
            }
            Fault::Kill => {
                member.signal(Signal::KILL)?;
                member.until_ended().await?;
                let gone = Instant::now();
                sleep(KILLED_PAUSE).await;
                gone
            }
            Fault::Stop => {
                member.signal(Signal::STOP)?;
                sleep(timing.stopped).await;
                member.signal(Signal::CONT)?;
                Instant::now()
            }
        };
        if matches!(fault, Fault::Terminate | Fault::Kill) {
            member.start()?;
            match target {
                Target::Server(index) => self.until_server_ready(index).await?,
                Target::Gateway(index) => self.until_gateway_ready(index).await?,
            }
        }
        Ok(Strike { struck, gone, returned: Instant::now() })
    }
}
