from lightning_mp.kernels.capability import describe_kernels


def test_every_group_says_what_runs_and_why():
    statuses = describe_kernels()
    assert statuses
    assert all(all(status) for status in statuses)


def test_reference_is_active_without_a_native_library():
    (status,) = describe_kernels()
    assert status.implementation == "reference (torch)"
    assert "no native library" in status.reason
