package monitoring

import "time"

var alertCases = []alertCase{
	{alert: "StandaloneCinderAbsent", name: "nothing is scraped", series: `up{job="other"} 1x30`, after: 11 * time.Minute, want: []string{`{}`}},
	{alert: "StandaloneCinderAbsent", name: "a follower is scraped", series: `standalone_cinder_leader{@a} 0x60`, after: 30 * time.Minute},

	{alert: "StandaloneCinderNoLeader", name: "three followers", series: `
		standalone_cinder_leader{@a} 1x10 0x30
		standalone_cinder_leader{@b} 0x40
		standalone_cinder_leader{@c} 0x40`, after: 15 * time.Minute, want: []string{`{}`}},
	{alert: "StandaloneCinderNoLeader", name: "a minute without a leader", series: `
		standalone_cinder_leader{@a} 1x10 0x30
		standalone_cinder_leader{@b} 0x12 1x28`, after: 20 * time.Minute},

	{alert: "StandaloneCinderSeveralLeaders", name: "two leaders", series: `
		standalone_cinder_leader{@a} 1x30
		standalone_cinder_leader{@b} 1x30`, after: 5 * time.Minute, want: []string{`{}`}},
	{alert: "StandaloneCinderSeveralLeaders", name: "an old scrape of the last leader", series: `
		standalone_cinder_leader{@a} 1x10 0x30
		standalone_cinder_leader{@b} 0x8 1x32`, after: 20 * time.Minute},
	{alert: "StandaloneCinderSeveralLeaders", name: "one in each namespace", series: `
		standalone_cinder_leader{namespace="x",pod="x"} 1x40
		standalone_cinder_leader{namespace="y",pod="y"} 1x40`, after: 20 * time.Minute},

	{alert: "StandaloneCinderReplicaNotScraped", name: "scrapes fail", series: `
		up{@a} 1x10 0x50
		standalone_cinder_leader{@a} 1x10 stale`, after: 20 * time.Minute, want: []string{`{pod="sc-a"}`}},
	{alert: "StandaloneCinderReplicaNotScraped", name: "another program's pod", series: `
		up{namespace="storage",pod="other"} 0x60
		standalone_cinder_leader{@a} 1x60`, after: 30 * time.Minute},
	{alert: "StandaloneCinderReplicaNotScraped", name: "the pod is gone", series: `
		up{@a} 1x10 stale
		standalone_cinder_leader{@a} 1x10 stale`, after: 30 * time.Minute},

	{alert: "StandaloneCinderRestarting", name: "thrice in an hour", series: `
		process_start_time_seconds{@a} 1x20 2x20 3x20 4x20
		standalone_cinder_leader{@a} 0x80`, after: 35 * time.Minute, want: []string{`{pod="sc-a"}`}},
	{alert: "StandaloneCinderRestarting", name: "a node was updated", series: `
		process_start_time_seconds{@a} 1x20 2x100
		standalone_cinder_leader{@a} 0x120`, after: time.Hour},

	{alert: "StandaloneCinderMemoryNearLimit", name: "95% of the limit", series: `
		process_resident_memory_bytes{@a} 5.1e8x60
		go_gc_gomemlimit_bytes{@a} 2.523e8x60
		standalone_cinder_leader{@a} 1x60`, after: 15 * time.Minute, want: []string{`{pod="sc-a"}`}},
	{alert: "StandaloneCinderMemoryNearLimit", name: "no limit is set", series: `
		process_resident_memory_bytes{@a} 5.1e8x60
		go_gc_gomemlimit_bytes{@a} 9.2e18x60
		standalone_cinder_leader{@a} 1x60`, after: 15 * time.Minute},
	{alert: "StandaloneCinderMemoryNearLimit", name: "another program", series: `
		process_resident_memory_bytes{namespace="storage",pod="other"} 5.1e8x60
		go_gc_gomemlimit_bytes{namespace="storage",pod="other"} 1e8x60
		standalone_cinder_leader{@a} 1x60`, after: 15 * time.Minute},

	{alert: "StandaloneCinderPolicyRefused", name: "one replica refuses it", series: `
		standalone_cinder_policy_last_reload_successful{@a} 1x30
		standalone_cinder_policy_last_reload_successful{@b} 0x30`, after: 6 * time.Minute, want: []string{`{}`}},
	{alert: "StandaloneCinderPolicyRefused", name: "corrected in time", series: `standalone_cinder_policy_last_reload_successful{@a} 1x5 0x5 1x50`, after: 30 * time.Minute},

	{alert: "StandaloneCinderPoliciesDiffer", name: "a replica stays behind", series: `
		standalone_cinder_policy_info{@a,revision="1"} 1x60
		standalone_cinder_policy_info{@b,revision="2"} 1x60`, after: 16 * time.Minute, want: []string{`{}`}},
	{alert: "StandaloneCinderPoliciesDiffer", name: "while kubelet updates the pods", series: `
		standalone_cinder_policy_info{@a,revision="1"} 1x10 stale
		standalone_cinder_policy_info{@a,revision="2"} _x11 1x60
		standalone_cinder_policy_info{@b,revision="1"} 1x14 stale
		standalone_cinder_policy_info{@b,revision="2"} _x15 1x60`, after: 30 * time.Minute},

	{alert: "StandaloneCinderLastGoodNotKept", name: "it cannot be written", series: `standalone_cinder_last_good_kept{@a} 0x60`, after: 16 * time.Minute, want: []string{`{}`}},
	{alert: "StandaloneCinderLastGoodNotKept", name: "the leader has not tried yet", series: `standalone_cinder_last_good_kept{@a} _x10 1x60`, after: 30 * time.Minute},

	{alert: "StandaloneCinderCredentialsUnreadable", name: "on one replica", series: `
		standalone_cinder_credentials_read_success{@a,backend="gold"} 1x30
		standalone_cinder_credentials_read_success{@b,backend="gold"} 0x30`, after: 6 * time.Minute, want: []string{`{backend="gold"}`}},
	{alert: "StandaloneCinderCredentialsUnreadable", name: "while a Secret is swapped", series: `standalone_cinder_credentials_read_success{@a,backend="gold"} 1x5 0x1 1x30`, after: 15 * time.Minute},

	{alert: "StandaloneCinderLoginFailing", name: "rejected", series: `standalone_cinder_last_login_successful{@a,backend="gold"} 1x5 0x30`, after: 10 * time.Minute, want: []string{`{backend="gold"}`}},
	{alert: "StandaloneCinderLoginFailing", name: "the next one succeeds", series: `standalone_cinder_last_login_successful{@a,backend="gold"} 1x5 0x3 1x30`, after: 15 * time.Minute},

	{alert: "StandaloneCinderTokenNotRenewed", name: "for three hours", every: hours, series: `standalone_cinder_token_expiry_timestamp_seconds{@a,backend="gold"} 3600x40`, after: 4 * time.Hour, want: []string{`{backend="gold"}`}},
	{alert: "StandaloneCinderTokenNotRenewed", name: "audits renew it", every: hours, series: `standalone_cinder_token_expiry_timestamp_seconds{@a,backend="gold"} 3600x7 7800x6 12000x7 15600x20`, after: 5 * time.Hour},
	{alert: "StandaloneCinderTokenNotRenewed", name: "a new leader has a new one", every: hours, series: `
		standalone_cinder_token_expiry_timestamp_seconds{@a,backend="gold"} 3600x40
		standalone_cinder_token_expiry_timestamp_seconds{@b,backend="gold"} 36000x40`, after: 6 * time.Hour},

	{alert: "StandaloneCinderCertificateExpires", name: "in 20 days", every: hours, series: `standalone_cinder_certificate_expiry_timestamp_seconds{@a,backend="gold",certificate="client"} 1728000x20`, after: 2 * time.Hour, want: []string{`{backend="gold", certificate="client"}`}},
	{alert: "StandaloneCinderCertificateExpires", name: "in 30 days", every: hours, series: `standalone_cinder_certificate_expiry_timestamp_seconds{@a,backend="gold",certificate="client"} 2592000x20`, after: 2 * time.Hour},

	{alert: "StandaloneCinderCertificateExpiresSoon", name: "in two days", series: `standalone_cinder_certificate_expiry_timestamp_seconds{@a,backend="gold",certificate="keystone"} 172800x20`, after: 6 * time.Minute, want: []string{`{backend="gold", certificate="keystone"}`}},
	{alert: "StandaloneCinderCertificateExpiresSoon", name: "replaced", series: `standalone_cinder_certificate_expiry_timestamp_seconds{@a,backend="gold",certificate="keystone"} 172800x5 31536000x60`, after: 20 * time.Minute},

	{alert: "StandaloneCinderBackendDown", name: "it does not answer", series: `
		standalone_cinder_backend_up{@a,backend="gold"} 1x5 0x30
		standalone_cinder_backend_up{@a,backend="silver"} 1x35`, after: 10 * time.Minute, want: []string{`{backend="gold"}`}},
	{alert: "StandaloneCinderBackendDown", name: "a short restart", series: `standalone_cinder_backend_up{@a,backend="gold"} 1x5 0x6 1x30`, after: 15 * time.Minute},

	{alert: "StandaloneCinderBackendFlapping", name: "five outages", series: `standalone_cinder_backend_outages_total{@a,backend="gold"} 0x5 1x5 2x5 3x5 4x5 5x20`, after: 20 * time.Minute, want: []string{`{backend="gold"}`}},
	{alert: "StandaloneCinderBackendFlapping", name: "one outage", series: `standalone_cinder_backend_outages_total{@a,backend="gold"} 0x20 1x60`, after: 40 * time.Minute},

	{alert: "StandaloneCinderBackendMissing", name: "removed from the policy", series: `
		standalone_cinder_missing_backend_persistentvolumes{@a,backend="old"} 3x60
		standalone_cinder_missing_backend_persistentvolumes{@b,backend="old"} 3x60`, after: 16 * time.Minute, want: []string{`{backend="old"}`}},
	{alert: "StandaloneCinderBackendMissing", name: "put back", series: `standalone_cinder_missing_backend_persistentvolumes{@a,backend="old"} 3x10 stale`, after: 30 * time.Minute},

	{alert: "StandaloneCinderClaimsFailing", name: "by reason", series: `
		standalone_cinder_oldest_pending_claim_timestamp_seconds{@a,state="failing",reason="ProvisioningFailed"} 0x60
		standalone_cinder_oldest_pending_claim_timestamp_seconds{@a,state="blocked",reason="BackendUnavailable"} 0x60`, after: 21 * time.Minute,
		want: []string{`{reason="BackendUnavailable", state="blocked"}`, `{reason="ProvisioningFailed", state="failing"}`}},
	{alert: "StandaloneCinderClaimsFailing", name: "new claims come and go", series: `standalone_cinder_oldest_pending_claim_timestamp_seconds{@a,state="failing",reason="ProvisioningFailed"} 0+30x100`, after: 45 * time.Minute},
	{alert: "StandaloneCinderClaimsFailing", name: "denied by the policy", series: `standalone_cinder_oldest_pending_claim_timestamp_seconds{@a,state="denied",reason="QuotaExceeded"} 0x100`, after: 45 * time.Minute},

	{alert: "StandaloneCinderClaimsWaiting", name: "no worker", series: `standalone_cinder_oldest_pending_claim_timestamp_seconds{@a,state="waiting",reason=""} 0x60`, after: 26 * time.Minute, want: []string{`{}`}},
	{alert: "StandaloneCinderClaimsWaiting", name: "a flood that is worked off", series: `standalone_cinder_oldest_pending_claim_timestamp_seconds{@a,state="waiting",reason=""} 0x20 0+30x60`, after: 40 * time.Minute},

	{alert: "StandaloneCinderClaimsDenied", name: "over quota for an hour", series: `standalone_cinder_oldest_pending_claim_timestamp_seconds{@a,state="denied",reason="QuotaExceeded"} 0x140`, after: 66 * time.Minute, want: []string{`{reason="QuotaExceeded"}`}},
	{alert: "StandaloneCinderClaimsDenied", name: "an outage is not a denial", series: `standalone_cinder_oldest_pending_claim_timestamp_seconds{@a,state="blocked",reason="BackendUnavailable"} 0x140`, after: 66 * time.Minute},

	// Ten claims a minute, of which a fifth takes longer than a minute.
	{alert: "StandaloneCinderClaimsSlow", name: "a fifth is slow", series: `
		standalone_cinder_claim_bound_duration_seconds_bucket{@a,tenant="t",backend="gold",le="60.0"} 0+4x150
		standalone_cinder_claim_bound_duration_seconds_count{@a,tenant="t",backend="gold"} 0+5x150`, after: time.Hour, want: []string{`{backend="gold"}`}},
	{alert: "StandaloneCinderClaimsSlow", name: "one in a hundred is slow", series: `
		standalone_cinder_claim_bound_duration_seconds_bucket{@a,tenant="t",backend="gold",le="60"} 0+99x150
		standalone_cinder_claim_bound_duration_seconds_count{@a,tenant="t",backend="gold"} 0+100x150`, after: time.Hour},
	{alert: "StandaloneCinderClaimsSlow", name: "three slow claims in a quiet night", series: `
		standalone_cinder_claim_bound_duration_seconds_bucket{@a,tenant="t",backend="gold",le="60"} 0x150
		standalone_cinder_claim_bound_duration_seconds_count{@a,tenant="t",backend="gold"} 0x20 1x20 2x20 3x90`, after: time.Hour},

	{alert: "StandaloneCinderClaimsSlowForHours", name: "a tenth is slow for hours", every: 5 * time.Minute, series: `
		standalone_cinder_claim_bound_duration_seconds_bucket{@a,tenant="t",backend="gold",le="60"} 0+9x100
		standalone_cinder_claim_bound_duration_seconds_count{@a,tenant="t",backend="gold"} 0+10x100`, after: 7 * time.Hour, want: []string{`{backend="gold"}`}},
	{alert: "StandaloneCinderClaimsSlowForHours", name: "within the objective", every: 5 * time.Minute, series: `
		standalone_cinder_claim_bound_duration_seconds_bucket{@a,tenant="t",backend="gold",le="60"} 0+99x100
		standalone_cinder_claim_bound_duration_seconds_count{@a,tenant="t",backend="gold"} 0+100x100`, after: 7 * time.Hour},

	{alert: "StandaloneCinderEventsDropped", name: "some", series: `standalone_cinder_events_dropped_total{@a} 0x5 10x20`, after: 10 * time.Minute, want: []string{`{}`}},
	{alert: "StandaloneCinderEventsDropped", name: "long ago", series: `standalone_cinder_events_dropped_total{@a} 10x60`, after: 30 * time.Minute},

	{alert: "StandaloneCinderDeletionsStuck", name: "for 40 minutes", series: `standalone_cinder_oldest_released_persistentvolume_timestamp_seconds{@a,backend="gold",protocol="iscsi",reclaim_policy="Delete"} 0x90`, after: 41 * time.Minute, want: []string{`{backend="gold"}`}},
	{alert: "StandaloneCinderDeletionsStuck", name: "retained on purpose", series: `standalone_cinder_oldest_released_persistentvolume_timestamp_seconds{@a,backend="gold",protocol="iscsi",reclaim_policy="Retain"} 0x90`, after: 41 * time.Minute},

	{alert: "StandaloneCinderKeptVolumes", name: "for a month", every: days, series: `standalone_cinder_oldest_released_persistentvolume_timestamp_seconds{@a,backend="gold",protocol="iscsi",reclaim_policy="Retain"} 0x130`, after: 31 * 24 * time.Hour, want: []string{`{backend="gold"}`}},
	{alert: "StandaloneCinderKeptVolumes", name: "for a week", every: days, series: `standalone_cinder_oldest_released_persistentvolume_timestamp_seconds{@a,backend="gold",protocol="iscsi",reclaim_policy="Retain"} 0x28`, after: 7 * 24 * time.Hour},

	{alert: "StandaloneCinderFormerVolumes", name: "for a month", every: days, series: `standalone_cinder_oldest_move_volume_timestamp_seconds{@a,backend="old",copy="former"} 0x130`, after: 31 * 24 * time.Hour, want: []string{`{backend="old"}`}},
	{alert: "StandaloneCinderFormerVolumes", name: "for a week", every: days, series: `standalone_cinder_oldest_move_volume_timestamp_seconds{@a,backend="old",copy="former"} 0x28`, after: 7 * 24 * time.Hour},

	{alert: "StandaloneCinderQuotaNearlyUsed", name: "95%", series: `
		standalone_cinder_quota{@a,scope="tenant",name="t",resource="gigabytes",type="used"} 95x60
		standalone_cinder_quota{@a,scope="tenant",name="t",resource="gigabytes",type="hard"} 100x60`, after: 16 * time.Minute, want: []string{`{name="t", resource="gigabytes", scope="tenant"}`}},
	{alert: "StandaloneCinderQuotaNearlyUsed", name: "half, nothing allowed, and no limit", series: `
		standalone_cinder_quota{@a,scope="tenant",name="t",resource="gigabytes",type="used"} 50x60
		standalone_cinder_quota{@a,scope="tenant",name="t",resource="gigabytes",type="hard"} 100x60
		standalone_cinder_quota{@a,scope="tenant",name="none",resource="volumes",type="used"} 0x60
		standalone_cinder_quota{@a,scope="tenant",name="none",resource="volumes",type="hard"} 0x60
		standalone_cinder_quota{@a,scope="tenant",name="free",resource="volumes",type="used"} 1000x60`, after: 25 * time.Minute},

	{alert: "StandaloneCinderVolumesLost", name: "a volume is missing", series: `standalone_cinder_audit_findings{@a,kind="MissingVolume",backend="gold"} 1x5`, after: time.Minute, want: []string{`{backend="gold", kind="MissingVolume"}`}},
	{alert: "StandaloneCinderVolumesLost", name: "an orphan is none", series: `standalone_cinder_audit_findings{@a,kind="OrphanVolume",backend="gold"} 1x60`, after: 30 * time.Minute},

	{alert: "StandaloneCinderAuditFindings", name: "a stuck volume", series: `standalone_cinder_audit_findings{@a,kind="StuckVolume",backend="gold"} 1x90`, after: 31 * time.Minute, want: []string{`{backend="gold", kind="StuckVolume"}`}},
	{alert: "StandaloneCinderAuditFindings", name: "others have their own alerts", series: `
		standalone_cinder_audit_findings{@a,kind="MissingVolume",backend="gold"} 1x90
		standalone_cinder_audit_findings{@a,kind="LeakedAttachment",backend="gold"} 1x90
		standalone_cinder_audit_findings{@a,kind="OrphanSecret",backend="gold"} 1x90`, after: 40 * time.Minute},

	{alert: "StandaloneCinderAttachmentsLeaked", name: "somebody may still write", series: `standalone_cinder_audit_findings{@a,kind="LeakedAttachment",backend="gold"} 1x60`, after: 16 * time.Minute, want: []string{`{backend="gold"}`}},
	{alert: "StandaloneCinderAttachmentsLeaked", name: "one that is missing is none", series: `standalone_cinder_audit_findings{@a,kind="MissingAttachment",backend="gold"} 1x60`, after: 30 * time.Minute},

	{alert: "StandaloneCinderNodesQuarantined", name: "a node does not come back", series: `standalone_cinder_csi_quarantined_nodes{@a,backend="gold"} 1x60`, after: 16 * time.Minute, want: []string{`{backend="gold"}`}},
	{alert: "StandaloneCinderNodesQuarantined", name: "a node reboots", series: `standalone_cinder_csi_quarantined_nodes{@a,backend="gold"} 0x5 1x10 0x60`, after: 30 * time.Minute},

	{alert: "StandaloneCinderScheduledSnapshotsLate", name: "a tenant without room", series: `standalone_cinder_scheduled_snapshots_late{@a,tenant="team-a"} 3x60`, after: 31 * time.Minute, want: []string{`{tenant="team-a"}`}},
	{alert: "StandaloneCinderScheduledSnapshotsLate", name: "a backend that was away for a while", series: `standalone_cinder_scheduled_snapshots_late{@a,tenant="team-a"} 3x20 stale`, after: 31 * time.Minute},

	{alert: "StandaloneCinderOrphans", name: "an orphan", series: `standalone_cinder_audit_findings{@a,kind="OrphanVolume",backend="gold"} 2x150`, after: 61 * time.Minute, want: []string{`{backend="gold", kind="OrphanVolume"}`}},
	{alert: "StandaloneCinderOrphans", name: "removed by the next audit", series: `standalone_cinder_audit_findings{@a,kind="OrphanVolume",backend="gold"} 2x60 stale`, after: 61 * time.Minute},

	{alert: "StandaloneCinderAuditStale", name: "audits fail", series: `
		standalone_cinder_leader{@a} 1x300
		standalone_cinder_audit_timestamp_seconds{@a} 0x300`, after: 125 * time.Minute, want: []string{`{}`}},
	{alert: "StandaloneCinderAuditStale", name: "the first one fails", series: `standalone_cinder_leader{@a} 1x300`, after: 61 * time.Minute, want: []string{`{}`}},
	{alert: "StandaloneCinderAuditStale", name: "every ten minutes, by changing leaders", series: `
		standalone_cinder_leader{@a} 1x100 0x200
		standalone_cinder_leader{@b} 0x100 1x200
		standalone_cinder_audit_timestamp_seconds{@a} 0+30x100 stale
		standalone_cinder_audit_timestamp_seconds{@b} _x104 3090+30x200`, after: 140 * time.Minute},
}
