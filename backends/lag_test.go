package backends

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// lags are how old the state is that reads show: of a database cluster under load, and of
// one in trouble.
var lags = []time.Duration{300 * time.Millisecond, time.Second, 10 * time.Second, time.Minute}

// lagging makes a term over a Cinder whose reads lag, in a bubble of synctest.
func lagging(t *testing.T, memory *memoryCinder) *Lifecycle {
	return memory.term(t, func(o *LifecycleOptions) { o.Poll, o.ReadLag = 200*time.Millisecond, memory.lag })
}

// untilDone repeats a call as the program does after a failure that may pass.
func untilDone(t *testing.T, call func() error) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(2 * time.Second) {
		err := call()
		if err == nil {
			return
		}
		if time.Since(began) > 10*time.Minute {
			t.Fatalf("it never succeeds: %v", err)
		}
	}
}

// settled lets all goroutines of the lifecycle end.
func settled(t *testing.T, l *Lifecycle) {
	t.Helper()
	for l.current().watcher.Running() || l.current().snapshots.taken.watcher.Running() {
		time.Sleep(time.Second)
	}
}

// TestReadsThatLagMakeNoSecondVolume: a volume that Cinder has acknowledged exists, although
// it is not shown yet. Nor is it left behind if its claim is deleted meanwhile.
func TestReadsThatLagMakeNoSecondVolume(t *testing.T) {
	for _, workflow := range []cinder.Workflow{cinder.WorkflowReserve, cinder.WorkflowAttachment} {
		for _, lag := range lags {
			t.Run(fmt.Sprintf("%s, %s", workflow, lag), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					memory := newMemoryCinder()
					memory.workflow, memory.lag = workflow, lag
					l := lagging(t, memory)
					var made Connected
					untilDone(t, func() (err error) { made, err = l.Connect(t.Context(), claimSpec(1)); return err })
					untilDone(t, func() error { return l.Complete(t.Context(), claimTarget(1, made.Volume.ID), false) })
					equal(t, memory.count("volume.create"), 1)
					equal(t, memory.volumes[made.Volume.ID].Status, cinder.StatusInUse)
					untilDone(t, func() error { return l.Remove(t.Context(), claimTarget(1, made.Volume.ID)) })
					time.Sleep(2 * lag)
					settled(t, l)
					equal(t, len(memory.volumes), 0)
				})
			})
		}
	}
}

// TestAVolumeThatIsNotShownYetIsRemoved: its claim is deleted at once.
func TestAVolumeThatIsNotShownYetIsRemoved(t *testing.T) {
	for _, lag := range lags {
		t.Run(lag.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := newMemoryCinder()
				memory.lag = lag
				l := lagging(t, memory)
				v, err := l.current().maker.create(t.Context(), claimSpec(1))
				success(t, err)
				untilDone(t, func() error { return l.Remove(t.Context(), claimTarget(1, v.ID)) })
				settled(t, l)
				equal(t, len(memory.volumes), 0)
			})
		})
	}
}

// TestReadsThatLagMakeNoSecondSnapshot does for snapshots what the above does for volumes.
func TestReadsThatLagMakeNoSecondSnapshot(t *testing.T) {
	for _, lag := range lags {
		t.Run(lag.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := newMemoryCinder()
				memory.lag = lag
				volume := memory.add(mine(1, cinder.StatusAvailable))
				l := lagging(t, memory)
				untilDone(t, func() error { _, err := l.Snapshots().TakeSnapshot(t.Context(), snapshotSpec(1, volume)); return err })
				settled(t, l)
				equal(t, memory.count("snapshot.create"), 1)
				equal(t, len(memory.snapshots), 1)
			})
		})
	}
}

// TestReadsThatLagTakeNoVolumeFromItsNode: calls are repeated, for the same node and for
// another one, while Cinder shows the volume as it was before. In the end, the detachment
// is not forgotten.
func TestReadsThatLagTakeNoVolumeFromItsNode(t *testing.T) {
	for _, lag := range lags {
		t.Run(lag.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := newMemoryCinder()
				memory.lag = lag
				id := memory.add(forNodes())
				l := lagging(t, memory)
				var first Published
				untilDone(t, func() (err error) {
					first, err = l.Publish(t.Context(), claimTarget(1, id), toNode("n1"))
					return err
				})
				for _, node := range []string{"n1", "n2"} {
					_, _ = l.Publish(t.Context(), claimTarget(1, id), toNode(node))
				}
				var again Published
				untilDone(t, func() (err error) {
					again, err = l.Publish(t.Context(), claimTarget(1, id), toNode("n1"))
					return err
				})
				equal(t, again.AttachmentID, first.AttachmentID)
				equal(t, memory.count("attachment.delete"), 0)
				equal(t, memory.volumes[id].Status, cinder.StatusInUse)
				untilDone(t, func() error {
					return l.Unpublish(t.Context(), claimTarget(1, id), UnpublishRequest{Node: "n1", Key: "key-of-n1", Attached: true})
				})
				settled(t, l)
				equal(t, len(memory.open), 0)
			})
		})
	}
}

// TestReadsThatLagHandOutNoAttachmentThatHasEnded: the node gets the volume again while
// Cinder still shows the attachment that was just deleted, or before the request to delete
// it arrives.
func TestReadsThatLagHandOutNoAttachmentThatHasEnded(t *testing.T) {
	for name, answer := range map[string]mishap{"answered": noFault, "the answer is lost": lost, "the request is late": late} {
		for _, lag := range lags {
			t.Run(name+", "+lag.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					memory := newMemoryCinder()
					memory.lag = lag
					id := memory.add(forNodes())
					l := lagging(t, memory)
					var first, again Published
					untilDone(t, func() (err error) {
						first, err = l.Publish(t.Context(), claimTarget(1, id), toNode("n1"))
						return err
					})
					time.Sleep(2 * lag)
					memory.delay = func() int { return 1000 }
					memory.fault = failOnce("attachment.delete", answer)
					_ = l.Unpublish(t.Context(), claimTarget(1, id), UnpublishRequest{Node: "n1", Key: "key-of-n1", Attached: true})
					untilDone(t, func() (err error) {
						again, err = l.Publish(t.Context(), claimTarget(1, id), toNode("n1"))
						return err
					})
					memory.deliverAll()
					if again.AttachmentID == first.AttachmentID {
						t.Errorf("attachment %s has ended, and is handed out again", first.AttachmentID)
					}
					equal(t, len(memory.open), 1)
				})
			})
		}
	}
}

// TestADetachmentFindsWhatAFailedCallMadeWhileReadsLag: Cinder shows the volume as it was
// before.
func TestADetachmentFindsWhatAFailedCallMadeWhileReadsLag(t *testing.T) {
	for name, c := range map[string]struct {
		operation string
		fails     mishap
	}{
		"the answer is lost":       {"attachment.create", lost},
		"it arrives twice":         {"attachment.create", twice},
		"it is not recorded":       {"metadata.update", rateLimited},
		"it is not completed":      {"attachment.complete", unsent},
		"its completion is lost":   {"attachment.complete", lost},
		"its record's answer, too": {"metadata.update", lost},
	} {
		for _, lag := range lags {
			t.Run(name+", "+lag.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					memory := newMemoryCinder()
					memory.lag = lag
					id := memory.add(forNodes())
					l := lagging(t, memory)
					time.Sleep(lag)
					memory.fault = failOnce(c.operation, c.fails)
					if _, err := l.Publish(t.Context(), claimTarget(1, id), toNode("n1")); err == nil {
						t.Fatal("it does not fail")
					}
					untilDone(t, func() error {
						return l.Unpublish(t.Context(), claimTarget(1, id), UnpublishRequest{Node: "n1", Key: "key-of-n1", Attached: true})
					})
					equal(t, len(memory.open), 0)
				})
			})
		}
	}
}

// TestALostAnswerMakesNothingTwiceWhileReadsLag: Cinder made the volume, or the snapshot,
// and does not show it yet when the call is repeated.
func TestALostAnswerMakesNothingTwiceWhileReadsLag(t *testing.T) {
	for _, lag := range lags {
		t.Run(lag.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := newMemoryCinder()
				memory.lag = lag
				l := lagging(t, memory)
				time.Sleep(lag)
				memory.fault = failOnce("volume.create", lost)
				var made Connected
				untilDone(t, func() (err error) { made, err = l.Connect(t.Context(), claimSpec(1)); return err })
				equal(t, memory.count("volume.create"), 1)
				untilDone(t, func() error { return l.Complete(t.Context(), claimTarget(1, made.Volume.ID), false) })
				time.Sleep(lag)
				memory.fault = failOnce("snapshot.create", lost)
				untilDone(t, func() error {
					_, err := l.Snapshots().TakeSnapshot(t.Context(), snapshotSpec(1, made.Volume.ID))
					return err
				})
				equal(t, memory.count("snapshot.create"), 1)
				settled(t, l)
			})
		})
	}
}

// TestADetachmentBesideAStrangerIsNotForgottenWhileReadsLag: somebody else has the volume,
// too, and Cinder does not show the node's attachment yet.
func TestADetachmentBesideAStrangerIsNotForgottenWhileReadsLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newMemoryCinder()
		memory.lag = 10 * time.Second
		v := forNodes()
		v.MultiAttach = true
		id := memory.add(v)
		memory.past()
		l := lagging(t, memory)
		time.Sleep(memory.lag)
		memory.attachedBy(t, id, cinder.Attachment{Host: "rescue"})
		time.Sleep(2 * time.Second)
		published, err := l.Publish(t.Context(), claimTarget(1, id), toNode("n1"))
		success(t, err)
		time.Sleep(9 * time.Second)
		untilDone(t, func() error {
			return l.Unpublish(t.Context(), claimTarget(1, id), UnpublishRequest{Node: "n1", Key: "key-of-n1", Attached: true})
		})
		settled(t, l)
		if _, open := memory.open[published.AttachmentID]; open {
			t.Errorf("the volume counts as detached from n1, and %s is left", published.AttachmentID)
		}
	})
}

// TestAVolumeThatAnotherClaimGotIsNotTakenForOneThatIsNotShown: the answer named no volume,
// and the real one went to another claim.
func TestAVolumeThatAnotherClaimGotIsNotTakenForOneThatIsNotShown(t *testing.T) {
	memory := newMemoryCinder()
	given := mine(1, cinder.StatusAvailable)
	given.Metadata[stamps.KeyReboundTo] = "uid-of-another-claim"
	id := memory.add(given)
	l := memory.term(t)
	e := l.current()
	e.known.Settle(claimStamp(1).ClaimUID, "never-shown")
	e.expect("never-shown", "")
	v, err := e.maker.look(t.Context(), claimStamp(1), testConnector, nil)
	if err == nil && v.ID == id {
		t.Errorf("the claim gets volume %s, which another claim has", v.ID)
	}
}

// TestANewTermWaitsForWhatReadsDoNotShowYet: the leader dies right after each of its
// steps, and the next one goes on at once. It makes nothing a second time, takes nothing
// for left over or gone, and in the end nothing is left.
func TestANewTermWaitsForWhatReadsDoNotShowYet(t *testing.T) {
	for _, lag := range lags {
		t.Run("a claim's volume, "+lag.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := newMemoryCinder()
				memory.lag, memory.workflow = lag, cinder.WorkflowAttachment
				made, err := lagging(t, memory).current().maker.create(t.Context(), claimSpec(1))
				success(t, err)
				var connected Connected
				untilDone(t, func() (err error) { connected, err = lagging(t, memory).Connect(t.Context(), claimSpec(1)); return err })
				equal(t, connected.Volume.ID, made.ID)
				again, err := lagging(t, memory).Connect(t.Context(), claimSpec(1))
				success(t, err)
				equal(t, again.AttachmentID, connected.AttachmentID)
				success(t, lagging(t, memory).Complete(t.Context(), claimTarget(1, made.ID), false))
				if err := lagging(t, memory).Abandon(t.Context(), claimStamp(1), testConnector, nil); !cinder.IsKind(err, KindRecorded) {
					t.Errorf("a volume in use is abandoned: %v", err)
				}
				equal(t, memory.count("volume.create"), 1)
				equal(t, memory.count("attachment.create"), 1)
				equal(t, memory.volumes[made.ID].Status, cinder.StatusInUse)
			})
		})
		t.Run("a volume that is deleted at once, "+lag.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := newMemoryCinder()
				memory.lag = lag
				v, err := lagging(t, memory).current().maker.create(t.Context(), claimSpec(1))
				success(t, err)
				l := lagging(t, memory)
				untilDone(t, func() error { return l.Remove(t.Context(), claimTarget(1, v.ID)) })
				settled(t, l)
				equal(t, len(memory.volumes), 0)
			})
		})
		t.Run("a node's attachment, "+lag.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := newMemoryCinder()
				memory.lag = lag
				v := forNodes()
				v.MultiAttach = true
				id := memory.add(v)
				to := toNode("n1")
				to.Shared = true
				first, err := lagging(t, memory).Publish(t.Context(), claimTarget(1, id), to)
				success(t, err)
				again, err := lagging(t, memory).Publish(t.Context(), claimTarget(1, id), to)
				success(t, err)
				equal(t, again.AttachmentID, first.AttachmentID)
				equal(t, len(memory.open), 1)
				success(t, lagging(t, memory).Unpublish(t.Context(), claimTarget(1, id), UnpublishRequest{Node: "n1", Key: "key-of-n1", Attached: true}))
				equal(t, len(memory.open), 0)
			})
		})
		t.Run("a snapshot, "+lag.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := newMemoryCinder()
				memory.lag = lag
				volume := memory.add(mine(1, cinder.StatusAvailable))
				_, err := lagging(t, memory).current().snapshots.createSnapshot(t.Context(), snapshotSpec(1, volume))
				success(t, err)
				l := lagging(t, memory)
				untilDone(t, func() error { _, err := l.Snapshots().TakeSnapshot(t.Context(), snapshotSpec(1, volume)); return err })
				settled(t, l)
				equal(t, memory.count("snapshot.create"), 1)
			})
		})
	}
}

// TestABackendThatLedElsewhereShowsWhatWasMadeBefore: what the term had not seen yet is
// not made again.
func TestABackendThatLedElsewhereShowsWhatWasMadeBefore(t *testing.T) {
	for _, lag := range lags {
		t.Run(lag.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := newMemoryCinder()
				memory.lag = lag
				l := lagging(t, memory)
				_, err := l.current().maker.create(t.Context(), claimSpec(1))
				success(t, err)
				l.mu.Lock()
				l.move(*l.at.config.Load())
				l.mu.Unlock()
				untilDone(t, func() error { _, err := l.Connect(t.Context(), claimSpec(1)); return err })
				settled(t, l)
				equal(t, memory.count("volume.create"), 1)
			})
		})
	}
}

// TestReadsThatLagHideNoChange: Cinder has accepted a change, and shows the state from
// before for a while. That is no failure.
func TestReadsThatLagHideNoChange(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, l *Lifecycle, id string) error{
		"a larger size": func(t *testing.T, l *Lifecycle, id string) error {
			v, err := l.Extend(t.Context(), claimTarget(1, id), 5)
			equal(t, v.SizeGiB, 5)
			return err
		},
		"another type": func(t *testing.T, l *Lifecycle, id string) error {
			v, err := l.Retype(t.Context(), claimTarget(1, id), "faster", false)
			equal(t, v.Type, "faster")
			return err
		},
		"the end of a volume": func(t *testing.T, l *Lifecycle, id string) error { return l.Remove(t.Context(), claimTarget(1, id)) },
		"the end of a connected volume": func(t *testing.T, l *Lifecycle, id string) error {
			_, err := l.Connect(t.Context(), claimSpec(1))
			success(t, err)
			return l.Abandon(t.Context(), claimStamp(1), testConnector, nil)
		},
		"the end of a snapshot": func(t *testing.T, l *Lifecycle, id string) error {
			s, err := l.Snapshots().TakeSnapshot(t.Context(), snapshotSpec(1, id))
			success(t, err)
			return l.Snapshots().RemoveSnapshot(t.Context(), SnapshotTarget{SnapshotID: s.ID, Stamp: snapshotSpec(1, id).Stamp, Place: memoryPlace})
		},
	} {
		for _, lag := range lags[:3] {
			t.Run(name+", "+lag.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					memory := newMemoryCinder()
					memory.lag = lag
					id := memory.add(mine(1, cinder.StatusAvailable))
					l := lagging(t, memory)
					success(t, change(t, l, id))
					settled(t, l)
				})
			})
		}
	}
}

// lateClients are those of a Keystone that takes long for the first login.
type lateClients struct {
	clients
	login time.Duration
	asked atomic.Bool
	done  chan struct{}
}

func (c *lateClients) client(ctx context.Context, config Config) (Cinder, error) {
	if !c.asked.Swap(true) {
		time.Sleep(c.login)
		close(c.done)
	}
	<-c.done
	return c.clients.client(ctx, config)
}

// TestANewTermLogsInWhileReadsMayLag: a login shows and changes nothing that lags, and
// whoever waits for a new leader need not wait for both.
func TestANewTermLogsInWhileReadsMayLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newMemoryCinder()
		term := memory.term(t, func(o *LifecycleOptions) { o.ReadLag = 2 * time.Second })
		l := newLifecycle(term.options, &lateClients{clients: &memoryClients{memory: memory.client()}, login: 1500 * time.Millisecond, done: make(chan struct{})})
		began := time.Now()
		_, err := l.Connect(t.Context(), claimSpec(1))
		success(t, err)
		if took := time.Since(began); took < 2*time.Second || took > 2500*time.Millisecond {
			t.Errorf("a claim has its volume %s after the beginning of the term", took)
		}
		settled(t, l)
	})
}

// silentClients are those of a Keystone that never answers.
type silentClients struct{ clients }

func (silentClients) client(ctx context.Context, _ Config) (Cinder, error) {
	<-ctx.Done()
	return nil, cinder.NotSent("gold", cinder.OperationLogin, ctx.Err())
}

// TestALoginThatHangsDelaysNoEndOfATerm: whoever waits until reads are up to date stops
// with the term, whether or not the login has been answered.
func TestALoginThatHangsDelaysNoEndOfATerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newMemoryCinder()
		ctx, end := context.WithCancel(t.Context())
		term := memory.term(t, func(o *LifecycleOptions) { o.ReadLag, o.Term = time.Minute, ctx })
		l := newLifecycle(term.options, silentClients{})
		time.AfterFunc(time.Second, end)
		began := time.Now()
		if _, _, err := l.Find(t.Context(), "volume-1"); err == nil {
			t.Error("a volume is found")
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("a read waits %s, and the term has ended after a second", took)
		}
		settled(t, l)
	})
}
