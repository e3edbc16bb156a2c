// `river work DSN`: says READY, and closes each order when its job comes, until SIGTERM. `river enqueue DSN`: one job an order, due at its
// deadline, for the orders that are in the table.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	jobsAnInsert = 2000
	// One order a statement, and no look at the clock: a job that came early would otherwise be an order never closed.
	closeOrder = `UPDATE orders SET status = 'expired', version = version + 1, closed_at = clock_timestamp()
WHERE id = $1 AND version = $2 AND status = 'pending'`
	pendingOrders = `SELECT id, version, expires_at FROM orders WHERE status = 'pending' ORDER BY id`
)

// Order is the job's arguments.
type Order struct {
	ID      int64 `json:"id"`
	Version int32 `json:"version"`
}

// Kind names the job.
func (Order) Kind() string { return "close_order" }

type closer struct {
	river.WorkerDefaults[Order]
	connections *pgxpool.Pool
}

// Work closes one order.
func (c *closer) Work(ctx context.Context, job *river.Job[Order]) error {
	_, err := c.connections.Exec(ctx, closeOrder, job.Args.ID, job.Args.Version)
	return err
}

func connect(ctx context.Context, dsn string, connections int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	return pgxpool.NewWithConfig(ctx, config)
}

func work(ctx context.Context, dsn string) error {
	jobs, err := connect(ctx, dsn, 10)
	if err != nil {
		return err
	}
	orders, err := connect(ctx, dsn, 30)
	if err != nil {
		return err
	}
	driver := riverpgxv5.New(jobs)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return err
	}
	if _, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &closer{connections: orders})
	client, err := river.NewClient(driver, &river.Config{
		Workers: workers,
		Logger:  slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		// Tuned for two cores: the defaults are 100 ms and 1 s; of 100 to 2,000 workers these did best.
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 200}},
	})
	if err != nil {
		return err
	}
	if err = client.Start(ctx); err != nil {
		return err
	}
	fmt.Println("READY")
	<-ctx.Done()
	return nil
}

func enqueue(ctx context.Context, dsn string) error {
	connections, err := connect(ctx, dsn, 2)
	if err != nil {
		return err
	}
	client, err := river.NewClient(riverpgxv5.New(connections), &river.Config{})
	if err != nil {
		return err
	}
	rows, err := connections.Query(ctx, pendingOrders)
	if err != nil {
		return err
	}
	var jobs []river.InsertManyParams
	for rows.Next() {
		var order Order
		var due time.Time
		if err = rows.Scan(&order.ID, &order.Version, &due); err != nil {
			return err
		}
		jobs = append(jobs, river.InsertManyParams{Args: order, InsertOpts: &river.InsertOpts{ScheduledAt: due}})
	}
	if err = rows.Err(); err != nil {
		return err
	}
	for start := 0; start < len(jobs); start += jobsAnInsert {
		if _, err = client.InsertMany(ctx, jobs[start:min(start+jobsAnInsert, len(jobs))]); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	task := work
	if os.Args[1] == "enqueue" {
		task = enqueue
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := task(ctx, os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
