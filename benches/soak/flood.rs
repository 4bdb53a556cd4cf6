//! A flood of tokens that nobody has issued, of every shape, beside honest clients. Whoever the gateway asks counts how
//! often it does; honest requests are measured first without the flood and then with it.

mod honest;
mod report;
mod scene;
mod tokens;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use honest::{Kind, Times};
use report::Moment;
use scene::Scene;
use tokens::Forger;

/// Connections of each version of HTTP on which tokens are sent.
const CONNECTIONS: usize = 8;

/// Half of the time without a flood, then all of it with one.
pub async fn run(seconds: u64) -> ExitCode {
    let lasting = Duration::from_secs(seconds);
    let scene = Scene::start().await;
    let quiet = honest(&scene, lasting / 2).await;
    println!("{} s without a flood are over; {seconds} s with one begin", seconds / 2);

    let before = Moment::of(&scene).await;
    let (ending, end) = watch::channel(false);
    let mut flood = JoinSet::new();
    for number in 0..CONNECTIONS {
        let forger = Forger::new(&scene, number);
        flood.spawn(forger.clone().over_http1(scene.process.gateway.address, end.clone()));
        flood.spawn(forger.over_http2(scene.process.gateway.address, end.clone()));
    }
    let flooded = honest(&scene, lasting).await;
    let after = Moment::of(&scene).await;
    ending.send_replace(true);
    let sent: u64 = flood.join_all().await.into_iter().sum();
    let scene = Arc::into_inner(scene).expect("everybody else is gone");
    let (_, said) = scene.process.end().await;
    report::print(sent, &before, &after, &quiet, &flooded, &said)
}

/// What honest clients find in that time.
async fn honest(scene: &Arc<Scene>, lasting: Duration) -> Vec<(Kind, Times)> {
    let (ending, end) = watch::channel(false);
    let clients: Vec<_> = Kind::ALL
        .into_iter()
        .flat_map(|kind| [false, true].map(|http2| (kind, http2)))
        .map(|(kind, http2)| (kind, tokio::spawn(honest::go_on(Arc::clone(scene), kind, http2, end.clone()))))
        .collect();
    sleep(lasting).await;
    ending.send_replace(true);
    let mut all: Vec<(Kind, Times)> = Kind::ALL.map(|kind| (kind, Times::default())).into();
    for (kind, client) in clients {
        // One who was cut off has panicked.
        let times = client.await.unwrap_or_else(|_| Times::failure());
        for (_, sum) in all.iter_mut().filter(|(known, _)| *known == kind) {
            sum.add(&times);
        }
    }
    all
}
