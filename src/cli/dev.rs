//! `portcullis dev`: starts an in-memory backend and `portcullis serve` in front of it.

use std::fs::File;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use portcullis_system::clock::Clock;

use super::failed;
use crate::dev::tour::{Tour, TourError};
use crate::dev::{Dev, DevOptions};
use crate::telemetry;

pub(super) fn run(options: &DevOptions) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("cannot start a thread: {error}")),
    };
    let dev = match runtime.block_on(Dev::start(options, Clock::system())) {
        Ok(dev) => dev,
        Err(error) => return failed(&error.to_string()),
    };
    let flags = match super::serve::flags(dev.gateway_flags()) {
        Ok(flags) => flags,
        Err(error) => return failed(&error.to_string()),
    };
    if options.tour {
        // Its lines would stand between those of the steps.
        let log = dev.paths().gateway_log();
        match File::create(&log) {
            Ok(file) => telemetry::init_into(file),
            Err(error) => return failed(&format!("{}: {error}", log.display())),
        }
    }
    let server = match super::serve::start(&flags) {
        Ok(server) => server,
        Err(code) => return code,
    };
    let mut out = std::io::stdout();
    let color = out.is_terminal() && std::env::var_os("NO_COLOR").is_none();
    if options.tour {
        let toured: Result<(), TourError> =
            Tour::new(&dev, color).and_then(|tour| runtime.block_on(tour.run(&mut out)));
        drop(server);
        return toured.map_or_else(|error| failed(&error.to_string()), |()| ExitCode::SUCCESS);
    }
    // Serve on even if standard output is closed.
    write!(out, "\n{}", dev.announcement(server.metrics_address(), color)).ok();
    if let Err(error) = super::serve::wait_for_signal(|| server.reload()) {
        return failed(&format!("cannot wait for signals: {error}"));
    }
    writeln!(out, "\nStopped. The files stay in {}.", dev.paths().dir().display()).ok();
    // Dropped, not drained: Ctrl-C ends a development server at once.
    drop(server);
    ExitCode::SUCCESS
}
