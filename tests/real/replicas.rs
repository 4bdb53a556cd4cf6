//! Three kube-apiservers on one etcd behind two gateways, under a mixed load, while one of them is terminated, killed or
//! stopped. `testkit::replicas` says which failures count.
//!
//! This is the short form: one API server and one gateway for each fault, both gateways for the rolling restart, and
//! short pauses. `cargo bench --bench soak -- --replicas` does everything to each process, and measures the load a
//! minute later. `--goaway-chance` is at its maximum all the time.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libtest_mimic::Trial;
use testkit::real::{Source, eventually};
use testkit::replicas::{
    Amount, Balancer, Fault, Layout, Load, Phase, PhaseReport, Replicas, Target, Timing, header,
};

use crate::Test;
use crate::servers::RealServers;

const AMOUNT: Amount =
    Amount { readers: 8, writers: 6, watches: 100, tunnels: 20, pause: Duration::from_millis(150) };
/// Clients that send one request after the other.
const DENSE: Amount = Amount { readers: 8, writers: 8, watches: 0, tunnels: 0, pause: Duration::ZERO };
const LAYOUT: Layout = Layout { servers: 3, gateways: 2, goaway_chance: 0.02 };
/// Long enough for the gateways to notice that a process does not answer.
const TIMING: Timing = Timing {
    stopped: Duration::from_secs(10),
    settling: Duration::from_secs(2),
    measured: Duration::from_secs(4),
};
/// How long watches may take to catch up, on a busy machine.
const CATCH_UP_TIMEOUT: Duration = Duration::from_mins(1);
/// Generous, for a busy machine: a gateway that waits for a stopped process waits longer.
const MAX_WAIT: Duration = Duration::from_secs(9);

/// The processes and the load, which the tests use one after the other.
#[derive(Default)]
struct Shared(Mutex<Option<Environment>>);

struct Environment {
    balancer: Arc<Balancer>,
    replicas: Replicas,
    dir: PathBuf,
}

impl Environment {
    async fn start() -> Result<Self, String> {
        let programs = Source::find().programs()?;
        let dir = tempfile::Builder::new().prefix("portcullis-replicas-").tempdir();
        let dir = dir.map_err(|error| error.to_string())?.keep();
        let replicas = Replicas::start(LAYOUT, &programs, Path::new(crate::PORTCULLIS), &dir)
            .await
            .map_err(|error| format!("{error}\nlogs: {}", dir.display()))?;
        let balancer = replicas.balancer();
        eprintln!("{}", header());
        Ok(Self { balancer, replicas, dir })
    }

    /// Starts clients, whose connections are spread over the gateways.
    async fn load(&self) -> Result<Load, String> {
        let load = Load::start(&self.balancer, AMOUNT);
        eventually("the watches and tunnels", async || Ok(load.is_complete())).await?;
        Ok(load)
    }

    /// Runs a phase and checks that it has harmed no client.
    async fn check(&mut self, fault: Fault, target: Target) -> Result<PhaseReport, String> {
        let load = self.load().await?;
        let Self { balancer, replicas, dir } = self;
        let report = replicas.run(Phase { fault, target }, &load, balancer, TIMING).await?;
        let lost = load.lost_events(CATCH_UP_TIMEOUT).await;
        let line = report.line();
        eprintln!("{line}");
        let fail = |what: &str| Err(format!("{what}\n{}\n{line}\nlogs: {}", header(), dir.display()));
        if report.violations() > 0 {
            return fail("requests failed or tunnels ended that the fault does not concern");
        }
        if lost > 0 {
            return fail(&format!("{lost} watch events were lost"));
        }
        if report.reads == 0 || report.writes == 0 || report.events == 0 || report.echoes == 0 {
            return fail("there was no load");
        }
        if report.longest[0] > MAX_WAIT {
            return fail("a read waited for a process that did not answer");
        }
        // A generous bound: the soak has the exact one.
        if report.imbalance() > 0.5 {
            return fail("the API servers do not share the load");
        }
        Ok(report)
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        if !std::thread::panicking() && std::env::var_os("PORTCULLIS_KEEP_TWIN").is_none() {
            std::fs::remove_dir_all(&self.dir).ok();
        }
    }
}

pub(crate) fn trials(trial: &dyn Fn(&str, Test) -> Trial) -> Vec<Trial> {
    let shared = Arc::new(Shared::default());
    let case = |name: &str, phases: Vec<(Fault, Target)>| {
        let shared = Arc::clone(&shared);
        let test = move |servers: &RealServers| run(&shared, servers, phases);
        trial(name, Box::new(test))
    };
    let (server, gateway) = (Target::Server, Target::Gateway);
    let own = Arc::clone(&shared);
    let goaways = move |servers: &RealServers| goaways_are_invisible(&own, servers);
    let goaways = trial("goaways_are_invisible", Box::new(goaways));
    vec![
        goaways,
        case("a_server_is_terminated", vec![(Fault::Terminate, server(0))]),
        case("a_server_is_killed", vec![(Fault::Kill, server(1))]),
        case("a_server_is_stopped", vec![(Fault::Stop, server(2))]),
        case(
            "gateways_are_restarted_in_turn",
            vec![(Fault::Terminate, gateway(0)), (Fault::Terminate, gateway(1))],
        ),
        case("a_gateway_is_killed", vec![(Fault::Kill, gateway(0))]),
        case("a_gateway_is_stopped", vec![(Fault::Stop, gateway(1))]),
    ]
}

/// Requests that follow each other at once, many of which meet a GOAWAY on their connection.
fn goaways_are_invisible(shared: &Shared, servers: &RealServers) -> Result<(), String> {
    with(shared, servers, async |environment| {
        let Environment { balancer, replicas, .. } = environment;
        let dense = Load::start(balancer, DENSE);
        let phase = Phase { fault: Fault::Nothing, target: Target::Server(0) };
        let report = replicas.run(phase, &dense, balancer, TIMING).await?;
        eprintln!("{}", report.line());
        if report.violations() > 0 || report.writes == 0 {
            return Err(format!("requests failed\n{}\n{}", header(), report.line()));
        }
        Ok(())
    })
}

fn run(shared: &Shared, servers: &RealServers, phases: Vec<(Fault, Target)>) -> Result<(), String> {
    with(shared, servers, async |environment| {
        for (fault, target) in phases {
            environment.check(fault, target).await?;
        }
        Ok(())
    })
}

/// Calls `test` with the processes, alone.
fn with(
    shared: &Shared,
    servers: &RealServers,
    test: impl AsyncFnOnce(&mut Environment) -> Result<(), String>,
) -> Result<(), String> {
    // After a panic of another test the processes may be in any state.
    let mut slot = shared.0.lock().map_err(|_| "another test of this group failed")?;
    servers.runtime().block_on(async {
        if slot.is_none() {
            *slot = Some(Environment::start().await?);
        }
        test(slot.as_mut().ok_or("not started")?).await
    })
}
