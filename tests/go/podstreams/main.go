// Command podstreams is a kubelet for exec, attach and port-forward: the streaming server of container runtimes, with processes
// and ports of this machine in place of those of containers.
//
//	podstreams ADDRESS CERTIFICATE KEY
//
// Exec runs the command. Attach runs one that writes to both of its outputs and repeats its input.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// Those of the kubelet.
const (
	idleTimeout     = 4 * time.Hour
	creationTimeout = 30 * time.Second
)

type runtime struct{}

func (runtime) ExecInContainer(_ context.Context, _, _, _ string, cmd []string, in io.Reader, out, err io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	if tty {
		return runOnTerminal(exec.Command(cmd[0], cmd[1:]...), in, out, resize)
	}
	return run(exec.Command(cmd[0], cmd[1:]...), in, out, err)
}

func (runtime) AttachContainer(_ context.Context, _, _, _ string, in io.Reader, out, err io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	attached := exec.Command("sh", "-c", "echo attached; cat; echo detached >&2")
	if tty {
		return runOnTerminal(attached, in, out, resize)
	}
	return run(attached, in, out, err)
}

func (runtime) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	defer conn.Close()
	go func() {
		io.Copy(conn, stream)
		conn.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(stream, conn)
	return err
}

// run returns when the process has ended, also if the client has more input.
func run(cmd *exec.Cmd, in io.Reader, out, errors io.Writer) error {
	if in != nil {
		stdin, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		go func() {
			defer stdin.Close()
			io.Copy(stdin, in)
		}()
	}
	// A nil stream in an interface is not nil.
	if out != nil {
		cmd.Stdout = out
	}
	if errors != nil {
		cmd.Stderr = errors
	}
	return exitOf(cmd.Run())
}

func runOnTerminal(cmd *exec.Cmd, in io.Reader, out io.Writer, resize <-chan remotecommand.TerminalSize) error {
	master, slave, err := openTerminal()
	if err != nil {
		return err
	}
	defer master.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	// The first size comes before the process runs, so that it never has another one.
	if size, ok := <-resize; ok {
		setSize(master, size)
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	slave.Close()
	go func() {
		for size := range resize {
			setSize(master, size)
		}
	}()
	if in != nil {
		go io.Copy(master, in)
	}
	var copied sync.WaitGroup
	// It ends with an error when the process has closed its end.
	copied.Go(func() { io.Copy(out, master) })
	copied.Wait()
	return exitOf(cmd.Wait())
}

func openTerminal() (master, slave *os.File, err error) {
	if master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	return master, slave, err
}

func setSize(terminal *os.File, size remotecommand.TerminalSize) {
	unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Height, Col: size.Width})
}

func exitOf(err error) error {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return utilexec.CodeExitError{Err: err, Code: exit.ExitCode()}
	}
	return err
}

func main() {
	certificate, err := tls.LoadX509KeyPair(os.Args[2], os.Args[3])
	if err != nil {
		panic(err)
	}
	session := func(serve func(http.ResponseWriter, *http.Request, *remotecommand.Options)) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			options, err := remotecommand.NewOptions(req)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			serve(w, req, options)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", session(func(w http.ResponseWriter, req *http.Request, options *remotecommand.Options) {
		remotecommand.ServeExec(w, req, runtime{}, req.PathValue("pod"), "", req.PathValue("container"), req.URL.Query()["command"],
			options, idleTimeout, creationTimeout, remotecommand.SupportedStreamingProtocols)
	}))
	mux.HandleFunc("/attach/{namespace}/{pod}/{container}", session(func(w http.ResponseWriter, req *http.Request, options *remotecommand.Options) {
		remotecommand.ServeAttach(w, req, runtime{}, req.PathValue("pod"), "", req.PathValue("container"),
			options, idleTimeout, creationTimeout, remotecommand.SupportedStreamingProtocols)
	}))
	mux.HandleFunc("/portForward/{namespace}/{pod}", func(w http.ResponseWriter, req *http.Request) {
		options, err := portforward.NewV4Options(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		portforward.ServePortForward(w, req, runtime{}, req.PathValue("pod"), "", options, idleTimeout, creationTimeout,
			portforward.SupportedProtocols)
	})
	server := http.Server{
		Addr:      os.Args[1],
		Handler:   mux,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}},
		// Streams need HTTP/1.1.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	panic(server.ListenAndServeTLS("", ""))
}
