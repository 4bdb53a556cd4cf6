//! Three kube-apiservers on one etcd behind two gateways, under a mixed load: each process is terminated, killed and
//! stopped for 10 s in turn, again and again until the time is over. The test target `real` has the short form;
//! `testkit::replicas` says which failures count.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use testkit::real::{Source, eventually};
use testkit::replicas::{Amount, Fault, Layout, Load, Phase, PhaseReport, Replicas, Target, Timing, header};

const LAYOUT: Layout = Layout { servers: 3, gateways: 2, goaway_chance: 0.02 };
const AMOUNT: Amount =
    Amount { readers: 12, writers: 8, watches: 200, tunnels: 20, pause: Duration::from_millis(100) };
const STOPPED: Duration = Duration::from_secs(10);
const MEASURED: Duration = Duration::from_secs(20);
/// After its return a process has its share of the load within this time.
const MAX_SETTLING: Duration = Duration::from_mins(1);
const MIN_SETTLING: Duration = Duration::from_secs(3);
/// About how long a phase takes beside its settling.
const PHASE: Duration = Duration::from_secs(35);
const CATCH_UP_TIMEOUT: Duration = Duration::from_mins(1);
/// Twice the timeout of the gateway's readiness probes.
const MAX_WAIT: Duration = Duration::from_secs(4);
const MAX_IMBALANCE: f64 = 0.2;

/// What must not happen, over all phases.
#[derive(Default)]
struct Sum {
    phases: usize,
    reads: usize,
    writes: usize,
    events: usize,
    failed: usize,
    killed_writes: usize,
    lost: usize,
    late: usize,
    uneven: usize,
}

/// Runs all faults of all processes, at least once.
pub(crate) async fn run(seconds: u64) -> ExitCode {
    match soak(Duration::from_secs(seconds)).await {
        Ok(sum) => sum.print(),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn soak(duration: Duration) -> Result<Sum, String> {
    let programs = Source::find().programs()?;
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let gateway = Path::new(crate::PORTCULLIS);
    let mut replicas = Replicas::start(LAYOUT, &programs, gateway, dir.path()).await?;
    let balancer = replicas.balancer();
    let phases = phases();
    let count = u32::try_from(phases.len()).unwrap_or(u32::MAX);
    let settling = (duration / count).saturating_sub(PHASE).clamp(MIN_SETTLING, MAX_SETTLING);
    let timing = Timing { stopped: STOPPED, settling, measured: MEASURED };
    println!("the load is measured {} s after the return of a process", settling.as_secs());
    println!("{}", header());
    let (began, mut sum) = (Instant::now(), Sum::default());
    for phase in phases.iter().cycle() {
        if sum.phases >= phases.len() && began.elapsed() >= duration {
            break;
        }
        // New connections, which are spread over the gateways.
        let load = Load::start(&balancer, AMOUNT);
        eventually("the watches and tunnels", async || Ok(load.is_complete())).await?;
        let report = replicas.run(*phase, &load, &balancer, timing).await?;
        let lost = load.lost_events(CATCH_UP_TIMEOUT).await;
        println!("{}", report.line());
        sum.add(&report, lost);
    }
    Ok(sum)
}

fn phases() -> Vec<Phase> {
    let servers = (0..LAYOUT.servers).map(Target::Server);
    let gateways = (0..LAYOUT.gateways).map(Target::Gateway);
    let targets: Vec<Target> = servers.chain(gateways).collect();
    let faults = [Fault::Terminate, Fault::Kill, Fault::Stop];
    let all = faults.into_iter().flat_map(|fault| targets.iter().map(move |target| (fault, *target)));
    let none = Phase { fault: Fault::Nothing, target: Target::Server(0) };
    std::iter::once(none).chain(all.map(|(fault, target)| Phase { fault, target })).collect()
}

impl Sum {
    fn add(&mut self, report: &PhaseReport, lost: usize) {
        self.phases += 1;
        self.reads += report.reads;
        self.writes += report.writes;
        self.events += report.events;
        self.failed += report.violations();
        self.killed_writes += report.killed_writes;
        self.lost += lost;
        if report.longest.into_iter().any(|wait| wait > MAX_WAIT) {
            self.late += 1;
            println!("    a request waited for more than {} s", MAX_WAIT.as_secs());
        }
        if report.imbalance() > MAX_IMBALANCE {
            self.uneven += 1;
            println!("    the load is uneven: {:.0} % from the mean", 100.0 * report.imbalance());
        }
        if lost > 0 {
            println!("    {lost} watch events were lost");
        }
    }

    fn print(&self) -> ExitCode {
        println!(
            "{} phases: {} reads, {} writes, {} watch events; failed {}, writes on killed connections {}, events lost {}, \
             phases with a late request {}, with uneven load {}",
            self.phases,
            self.reads,
            self.writes,
            self.events,
            self.failed,
            self.killed_writes,
            self.lost,
            self.late,
            self.uneven
        );
        if self.failed + self.lost + self.late + self.uneven == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}
